"""The matrix: every model of the zoo x cache family x {K and V, K only, V only} x flash attention, judged.

`program` runs the built `turbo-matrix` on a model, `judge` says whether a cell is right, `table` prints, `expected`
says what must be refused and how many bits a value must take.

The bound. A codec of normalised mean squared error e turns a vector x of d values into x' with E|x' - x|^2 = e |x|^2
and, because its scale is the least-squares one, <x', x - x'> = 0. Of all the ways to make such an error the Gaussian
test channel of rate-distortion theory is the plain one (Cover and Thomas, Elements of Information Theory, 10.3):

    x' = (1 - e) x + sqrt(e (1 - e)) |x| / sqrt(d) g        g standard normal

`turbo-matrix` runs the model with an f32 cache whose entries pass that channel, with e the codec's own error as the
library states it (`ggml_turbo_nmse`: the Lloyd-Max error of its codebook, not fitted to the model), on the sides of the
cell, under the same conditioning of keys. That gives the KLD that this model must show for an error of that size,
whatever its shape: no assumption on how KLD grows with e, and none on the model. A cell must lie within SAFETY of it,
above (the codec does what its error says), and below within SPARE of it (something was quantised: the conditioning
leaves less error where the attention looks than the channel does, down to 0.30 of it; which type it was is read back
from the buffers); and above the floor, the KLD of an f16 cache.

Measured over the zoo, cells lie between 0.3 and 1.4 times the channel. The low end is K of small heads: where queries
and keys share a few large channels, the code's error falls mostly on what queries do not look at. The high end is
noise: some hundred tokens decide a cell, and KLD has a heavy tail.
"""
