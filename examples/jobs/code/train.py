"""The entry script of jobs s0 and s4; recommender.toml and the hyper-parameters say everything."""

from dtlab.sagemaker.script import main

if __name__ == "__main__":
    raise SystemExit(main())
