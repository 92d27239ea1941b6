"""What a run needs and costs, without importing torch: memory, prices, bills, speed-ups.

- `units`: GB and GiB, never mixed.
- `catalogue`: instances and storage, every price with unit, region, date, source and kind.
- `price_file`, `price_refresh`: prices of your own, and those of AWS's price list (lesson 14).
- `billing`: price x time with per-second billing; whole instances; spot beside on-demand.
- `prices`: one figure with all that must be said of it; a card and its machine; spot prices over zones.
- `pipeline`: the bubble, micro-batches in flight, parameters of a stage (lesson 08).
- `parameters`, `presets`, `memory`: parameter counts by formula and the bytes that training needs.
- `strategy`, `builders`: how a model is trained on many ranks; presets from a shape of your own (lesson 09).
- `rank_memory`: peak bytes of every rank of a strategy, from `stages`, `layer_bytes` and the habits of a
  training program (`programs`).
- `memory_error`: how far such predictions were from measured runs of the same kind.
- `remedies`: what to change first, chosen by the largest item; `memory_claim`: S0's 92 % to 68 %, part by
  part.
- `decoder_activations`: bytes that autograd keeps of the course's GPT on a rank of any layout (lesson 09).
- `host_memory`: what saving a whole model takes on a host (lesson 09).
- `zero`: what each of n data-parallel ranks holds under ZeRO 0 to 3, to the byte (lesson 09).
- `scaling`: what more ranks can bring, and what one step is bound by (lesson 01).
- `embedding`, `embedding_plan`: bytes of one step for each way to hold a table, and the least (lesson 07).
- `collectives`: seconds of an all-reduce by the textbook model (lesson 02).
- `collective_time`, `collective_fit`, `networks`: seconds of a collective by two fitted numbers, how they are
  fitted, and the links of each machine with their source (lessons 02 and 10).
- `bucket_time`: buckets of gradients on a link, and the size that exposes least (lesson 10).
- `step_time`: seconds of a step under a `Strategy`, item by item, with the error measured for its kind; its
  parts: `work` (FLOPs), `calibration` (what cards reach), `sync_time` (messages), `machines` (lesson 09).
- `step_scaling`: throughput and efficiency from few ranks to many by that model (lesson 01).
- `run_fit`, `run_steps`, `run_error`: the time of a step fitted to runs of your own, and how far it may be
  off (lessons 01 and 10); `own_calibration` is such a fit as the planner takes it.
- `spot`: checkpoint intervals, and what interruptions make of a run's time; `spot_simulation` draws runs;
  `spot_plan` puts a run on spot hosts beside the same on demand (lesson 13).
- `planner`: machines, their number and the ways to cut a model, searched for the cheapest or the fastest run:
  `plan_job` is its input, `plan_space`, `plan_machines` and `plan_search` its parts, `plan_words` and
  `plan_bill` its report; `beside` is what a run costs beside its machines.
- `economics`, `source_table`: dollars per epoch, per sample and to a target; the source's table recomputed.
- `storage_bill`, `queueing`, `idle`: what data costs; jobs that wait against hosts that idle (lesson 14).
- `alarms`: AWS's own alarms on spending as checked requests (lesson 14).
"""
