"""`p2pfl new --task lora`: a node for each text, with adapters of one language model.

The task itself is `p2pfl.adapt.transformers`.
"""

NEW = "p2pfl.features.texts.new_options:TextsOptions"
