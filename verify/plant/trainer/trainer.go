// Package trainer is a small RL trainer that dumps what it computed: ids, masks, log-probs, KL, rewards, advantages, ratios,
// losses, gradients and logged numbers, under any set of options, in float32, bf16 or float64.
//
// It exists to be checked. [Healthy] gives batches on which every check must be silent, [Faulty] batches with one known bug,
// planted where a real trainer had it, so that everything downstream follows the bug. For that it shares no formula with
// package rl: what is computed here was written from the conventions a second time, in another precision and with other
// orders of summation, gradients by hand. A bug in either of the two shows as a false alarm or as a fault that is missed.
//
// The data are those of a small language model that does not exist: logits are drawn, the policies differ by noise on the
// same logits, tokens are sampled from the engine's policy, responses end at an EOS or are cut off.
package trainer

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Config says what to train on and how to dump it. The zero value of a number means its default.
type Config struct {
	Set *convention.Set // options, all of which must have a value where the pipeline needs one: see Complete

	Rows  int // of all files together; made a multiple of Group. Default 16
	Cols  int // width of the response grid; default 12
	Group int // samples of one prompt; default 4
	Files int // micro-batches of a rank; default 1
	Ranks int // default 1

	DType   format.DType // of stored float tensors: F64, F32 or BF16. Default F32
	Compute format.DType // F32, or BF16: every operation rounds. Default F32; a DType of F64 computes in F64

	// Round, with a DType of F64, makes what it likes of the result of every operation, which a correct program may have off by so many
	// unit roundoffs of its format: for an adversary that looks for the largest error. Operations without a rounding, as x + 0 and
	// products by powers of two, are left out. What is dumped is float64, and declared to be computed in float32.
	Round func(x, units float64) float64

	Seed      uint64
	Holes     bool // tool output stands between the policy's own tokens
	Logits    bool // logits are dumped, of the policy being trained
	Rewards   int  // reward functions; several need adv.multi. Default 1
	FirstStep bool // the first update: old, new and reference policy are the same
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *int
		value int
	}{{&c.Rows, 16}, {&c.Cols, 12}, {&c.Group, 4}, {&c.Files, 1}, {&c.Ranks, 1}, {&c.Rewards, 1}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if c.DType == format.Unknown {
		c.DType = format.F32
	}
	if c.Compute == format.Unknown {
		c.Compute = format.F32
	}
	if c.DType == format.F64 {
		c.Compute = format.F64
	}
	c.Rows = max(c.Rows/c.Group, 1) * c.Group
	c.Files = min(c.Files, max(c.Rows/c.Ranks, 1))
	c.Ranks = min(c.Ranks, c.Rows)
	return c
}

// Healthy returns the dump of one step of a correct trainer, and the options and facts that it declares.
func Healthy(c Config) (*dump.Batch, *convention.Set) { return train(c.withDefaults(), "", "") }

// Faulty returns the dump of one step of a trainer with one bug. It reports whether the bug shows on these data: whether one
// of the plant's outputs differs from that of the same trainer without the bug by more than a share of its value or of its root
// mean square, whichever is larger: a thousandth, or a unit in the last place of bf16 where that is what is stored. It panics if there is no plant of that name.
func Faulty(c Config, plant string) (*dump.Batch, *convention.Set, bool) {
	p := FindPlant(plant)
	if p == nil {
		panic("trainer: no plant " + plant)
	}
	c = c.withDefaults()
	if !p.Applies(c.Set) {
		b, set := train(c, "", plant)
		return b, set, false
	}
	want, _ := train(c, "", plant)
	got, set := train(c, plant, plant)
	return got, set, differs(want, got, p.Outputs, told[c.DType])
}

// train runs a step with a bug planted. The data are those on which the bug of that name can show, if it asks for special
// ones.
func train(c Config, plant, data string) (*dump.Batch, *convention.Set) {
	if c.DType == format.F64 {
		return step[float64](c, plant, data)
	}
	return step[float32](c, plant, data)
}

func step[F float32 | float64](c Config, plant, data string) (*dump.Batch, *convention.Set) {
	r := &run[F]{
		Config: c, o: settingsOf(c.Set), plant: plant, data: data,
		unit: unit[F]{bf16: c.Compute == format.BF16, turn: c.Round},
	}
	r.world = newWorld(c, r.o, data)
	if plant == "VALUES-OTHER-PASS" && c.FirstStep {
		slices.Reverse(r.values)
	}
	if plant == "ROWS-REPEATED" {
		r.mergeGroups()
	}
	r.masks()
	r.logprobs()
	r.ratios()
	r.divergence()
	r.reward()
	r.advantage()
	r.policy()
	r.value()
	r.aggregate()
	r.gradient()
	r.metrics()
	return r.pack()
}

// mergeGroups gives pairs of groups one prompt, as if it had been repeated twice.
func (w *world) mergeGroups() {
	prompt := map[int][]int{}
	for i, g := range w.group {
		if g%2 == 0 {
			prompt[g] = w.prompt[i]
		}
	}
	for i, g := range w.group {
		w.group[i], w.prompt[i] = g/2, prompt[g/2*2]
	}
}

// told is the relative difference that a stored type can show.
var told = map[format.DType]float64{format.F64: 1e-3, format.F32: 1e-3, format.BF16: 0x1p-7}

// differs reports whether one of the outputs is another in got than in want, by more than a share.
func differs(want, got *dump.Batch, outputs []string, share float64) bool {
	for _, name := range outputs {
		if scalar, ok := strings.CutPrefix(name, "scalar:"); ok {
			for f := range want.Files {
				if unlike(logged(want, f, scalar), logged(got, f, scalar), share) {
					return true
				}
			}
			continue
		}
		if name == "response_mask" {
			for i, m := range want.Mask {
				if m != got.Mask[i] {
					return true
				}
			}
			continue
		}
		a, b := want.Tensors[name], got.Tensors[name]
		if a != nil && b != nil && unlike(judged(want, a), judged(want, b), share) {
			return true
		}
	}
	return false
}

// judged returns the cells of a tensor that are somebody's: those of tokens, all cells of a gradient.
func judged(b *dump.Batch, t *dump.Tensor) []float64 {
	if t.Layout != dump.PerToken || t.Width > 1 || t.Name == "dlogp" || t.Name == "dvalues" || !slices.Contains(b.Mask, true) {
		return t.Data
	}
	return picked(t.Data, b.Mask)
}

func logged(b *dump.Batch, file int, name string) []float64 {
	for _, s := range b.Files[file].Scalars {
		if s.Name == name {
			return []float64{s.Value}
		}
	}
	return nil
}

// unlike reports whether two tensors differ by more than a share somewhere.
func unlike(want, got []float64, share float64) bool {
	if len(want) != len(got) {
		return true
	}
	var squares float64
	for _, x := range want {
		squares += x * x
	}
	scale := math.Sqrt(squares / float64(max(len(want), 1)))
	for i, x := range want {
		if math.IsNaN(x) && math.IsNaN(got[i]) {
			continue
		}
		if !(math.Abs(got[i]-x) <= share*math.Max(math.Abs(x), scale)) {
			return true
		}
	}
	return false
}
