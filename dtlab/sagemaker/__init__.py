"""A training job on SageMaker: its request, the first process of its container, and a rehearsal.

Importing this package needs neither boto3 nor the SageMaker SDK: they are loaded by the functions that use
them (lesson 15).

On the machine of the person who sends the job:

- `job`, `tables`, `job_file`: what a job is, and the TOML file that describes it.
- `distribution`: v2 ``distribution={...}`` dictionaries, translated with a line for each change.
- `hyperparameters`: values to the strings that SageMaker carries, and back.
- `source`: the folder with the entry script, checked and packed.
- `request`: the ``CreateTrainingJob`` request; `cost.aws_model` checks it offline.
- `account`, `plan`: quotas, rights, alarms, price; what ``dtlab sagemaker plan`` shows.
- `client`, `batch_queue`: submit, watch and stop a job; the same request for an AWS Batch queue.
- `tuning`, `tuning_client`: a tuning job whose training jobs start torchrun; send it and watch it.
- `pipeline_table`, `pipeline`, `pipeline_steps`, `pipeline_check`, `pipeline_client`: the steps of
  ``dtlab pipeline`` as a SageMaker pipeline; `pipeline_rehearsal` plays its definition on this machine.
- `model_trainer`: the same job as a ``ModelTrainer`` of the SDK.
- `hosts`, `drivers`, `small_data`, `rehearsal`: the job's containers played on this machine.

In the container:

- `bootstrap`, `first_process`, `container`, `failure`: unpack, start the ranks, pass signals on, say why.
- `processing`: a step of a pipeline beside training.
- `rank_script`, `script`: the entry script as one rank; ``dtlab train`` as an entry script.
"""
