package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// anySet draws a set with a value for every option that any check may read, or none.
func anySet(t *rapid.T) *convention.Set {
	set := &convention.Set{}
	for _, o := range convention.Options() {
		var texts []string
		switch o.Type {
		case convention.BoolType:
			texts = []string{"true", "false"}
		case convention.EnumType, convention.ChoiceType:
			texts = o.Values
		case convention.NumberType, convention.OrNoneType:
			texts = append(slices.Clone(o.Values), "0.5", "1", "1.5")
		default:
			texts = o.Values
		}
		text := rapid.SampledFrom(texts).Draw(t, o.Name)
		switch rapid.IntRange(0, 19).Draw(t, o.Name+" unsaid") {
		case 0:
			text = "?"
		case 1:
			text = "–"
		}
		v, err := o.Parse(text)
		if err == nil {
			set = set.With(o.Name, v, "test")
		}
	}
	for _, name := range []string{"gradient_accumulation_steps", "num_items_in_batch", "steps_per_generation", "max_completion_length", "loss_denominator"} {
		if rapid.Bool().Draw(t, "has "+name) {
			set = set.WithFact(name, float64(rapid.IntRange(0, 5).Draw(t, name)))
		}
	}
	return set
}

// anyBatch draws a small batch that may lack and hold anything.
func anyBatch(t *rapid.T) *dump.Batch {
	tr := newTrainer(rapid.Uint64().Draw(t, "seed"))
	b := tr.b
	value := func(int) float64 {
		switch tr.r.IntN(20) {
		case 0:
			return math.NaN()
		case 1:
			return math.Inf(2*tr.r.IntN(2) - 1)
		case 2:
			return 0
		case 3:
			return 1e4 * tr.r.NormFloat64()
		}
		return tr.r.NormFloat64()
	}
	wild := rapid.Bool().Draw(t, "wild")
	draw := func(i int) float64 {
		if wild {
			return value(i)
		}
		return tr.r.NormFloat64()
	}
	for _, name := range []string{"logp_new", "logp_old", "logp_ref", "logp_gen", "advantages", "kl", "entropy", "is_weights", "token_loss", "values", "values_new", "returns", "dlogp", "dvalues"} {
		switch rapid.IntRange(0, 5).Draw(t, name) {
		case 0:
		case 1:
			if name == "advantages" || name == "is_weights" || name == "kl" || name == "token_loss" {
				tr.perRow(name, draw)
				continue
			}
			fallthrough
		default:
			tr.grid(name, draw)
		}
	}
	for _, name := range []string{"scores", "group_id", "logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"} {
		if rapid.IntRange(0, 3).Draw(t, name) == 0 {
			tr.perRow(name, draw)
		}
	}
	for _, name := range []string{"loss", "pg_loss", "kl_loss", "value_loss", "entropy_loss"} {
		if rapid.Bool().Draw(t, name) {
			x := make([]float64, len(b.Files))
			for i := range x {
				x[i] = draw(i)
			}
			tr.perFile(name, x)
		}
	}
	for i := range b.Files {
		for _, name := range []string{"loss", "kl", "entropy", "clip_frac", "approx_kl", "ppo_kl", "clip_ratio/low_mean", "clip_ratio/high_max", "reward", "completions/mean_length", "actor/ppo_kl", "ppo_clip_ratio"} {
			b.Files[i].Scalars = append(b.Files[i].Scalars, dump.Scalar{Name: name, Value: draw(i)})
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "all masked") == 0 {
		clear(b.Mask)
	}
	if rapid.IntRange(0, 3).Draw(t, "missing") == 0 {
		b.Missing = []string{"rank 1"}
	}
	b.Meta.Framework = rapid.SampledFrom([]string{"trl", "verl", "openrlhf", "", "test"}).Draw(t, "framework")
	b.Meta.Algorithm = rapid.SampledFrom([]string{"grpo", "ppo", "sft", "dpo", ""}).Draw(t, "algorithm")
	b.Meta.ScalarsScope = rapid.SampledFrom([]string{"optimizer_step", "micro_batch", ""}).Draw(t, "scope")
	b.Meta.DLogpScale = rapid.SampledFrom([]float64{1, 0.5, 0, math.NaN()}).Draw(t, "dlogp_scale")
	b.Meta.MicroBatches *= rapid.IntRange(0, 1).Draw(t, "micro-batches said")
	return b
}

func TestLossChecksNeverPanic(t *testing.T) {
	stages := []convention.Stage{convention.Ratio, convention.TokenLoss, convention.Aggregate, convention.Gradient, convention.Scalars}
	rapid.Check(t, func(t *rapid.T) {
		b, set := anyBatch(t), anySet(t)
		for _, ch := range stage.All() {
			if slices.Contains(stages, ch.Stage) {
				o := stage.Judge(ch, b, set)
				if o.Pred != nil && o.Pred.Terms != nil && len(o.Pred.Want) > 0 {
					require.NotEmpty(t, o.Pred.Terms(0))
				}
			}
		}
	})
}
