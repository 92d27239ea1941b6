"""A training job on SageMaker: its request, the first process of its container, and a rehearsal.

Importing this package needs neither boto3 nor the SageMaker SDK: they are loaded by the functions that use
them (lesson 15).

- `job`, `tables`, `job_file`: what a job is, and the TOML file that describes it.
- `distribution`, `retired`: v2 ``distribution={...}`` dictionaries and retired instances, translated, with a
  line for each change.
- `request`, `offline`: the ``CreateTrainingJob`` request, checked against botocore's own model without a
  network.
- `plan`: the request with price, quotas, policies and alarms, as ``dtlab sagemaker plan`` shows it.
- `hyperparameters`: values to the strings that SageMaker carries, and back.
- `source`: the folder with the entry script, checked and packed.
"""
