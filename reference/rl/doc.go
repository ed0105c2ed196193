// Package rl is the mathematics of RL fine-tuning in float64: log-probabilities, KL estimators, rewards, advantages, losses
// and their gradients, one idea per file, each with named options. One set of functions gives the numbers of TRL, verl,
// OpenRLHF, NeMo-RL, open-instruct, OpenAI's lm-human-preferences and CleanRL, and of the four systems of this repository:
// where they differ, an option says how, and its String is the name under which a dump declares it.
//
// The code is meant to be read against the formula in the doc comment: one loop per sum in the order of the formula, and
// every product that enters a sum is rounded first, float64(a*b)+c, so that results have the same bits on every machine.
//
// # Data
//
// A batch is a row-major []float64 of rows×cols: a row is one response, a column one token position. A mask is a []bool of
// the same length, true at the policy's own tokens; false cells may lie between true ones (tool output) and after them
// (padding). What belongs to a row, such as a score, is a []float64 of length rows.
//
// A function that returns a slice takes it as first argument dst: nil allocates it, otherwise its length must fit. Unless a
// comment says more, dst may be the very slice of an input of equal length, and must not overlap an input in another way.
//
// # Masked cells, NaN, errors
//
// A masked cell is selected away, never multiplied by 0, so that what it holds cannot matter; an option that reproduces a
// framework that multiplies says so. NaN at a true cell is a value and spreads as the arithmetic has it. Where a framework
// raises an exception, the function returns one of the errors of this package. Lengths that do not fit and options out of
// range are mistakes of the caller: the function panics before it writes anything.
package rl
