"""FLOPs of nodes, from their operators and the shapes of their tensors.

The conventions (each module has the details):

* a multiply-add is 2: MatMul is 2·M·N·K, Conv is 2 for each element written and each element of its window;
* an elementwise operator is 1 for each element written, also a comparison or a conversion; an exponential, logarithm or
  root 4; tanh, erf and Gelu 8; a sigmoid 6; a softmax 5; a normalization 8; to quantize or dequantize 2;
* a reduction is 1 for each element read;
* moving data and looking at shapes is 0;
* attention is the whole matrix of scores, masked or not;
* If is its more expensive branch, Loop and Scan are their body times the trips, a function is its nodes;
* an operator without a rule is 0 and is listed (`Costs.uncounted`).
"""
