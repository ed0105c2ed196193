// Package nn is the layers that language models are made of, as formulas on the tape of [plumbline/reference/ad]: one
// operation per file, differentiated by the tape, so that no derivative is written here.
//
// Letters: B batch, T queries, S keys, C channels, H heads, K key-value heads, D head size, V vocabulary, R rank. Activations
// are [B, T, C], heads [B, T, H, D]. Weights lie as the frameworks store them: those of [Linear] are [out, in], those of
// [Conv1D] are [in, out].
//
// Every row of a result is computed from the rows it depends on, in an order of additions that does not depend on how many
// other rows there are. A sequence alone, in a batch, padded, packed or decoded with a cache therefore gives the same bits.
//
// A nil bias is no bias. Shapes that do not fit panic with "nn: …" or "ad: …"; what a file can get wrong, such as the
// parameters of [RoPE], has a Validate that returns an error.
package nn
