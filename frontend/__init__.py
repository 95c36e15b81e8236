"""torch's side: the Dynamo backend, AOTAutograd, decompositions, FX import and calls back into ATen."""
