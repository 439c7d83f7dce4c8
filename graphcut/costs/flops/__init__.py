"""FLOPs of nodes, from their operators and sizes.

The conventions (each file says more):

* a multiply-add is 2: MatMul is 2·M·N·K, Conv is 2 for each element written and place of its window;
* an elementwise operator is 1 for each element written, a comparison and a conversion too; exponentials, logarithms and
  roots are 4, tanh, erf and Gelu 8, a sigmoid 6, a softmax 5, a normalisation 8;
* a reduction is 1 for each element read;
* what only moves data or looks at shapes is 0;
* attention counts the whole rectangle of scores, masked or not;
* If costs its heavier branch, Loop and Scan their body times the trips, a function what its nodes cost;
* an operator without a formula is 0, and is listed (`Costs.uncounted`).
"""
