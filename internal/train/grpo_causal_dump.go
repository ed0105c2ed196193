package train

import (
	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"slices"
	"strings"
)

// dumpAfter writes the numbers of an update, also where it failed with err, and returns the first error.
func (c *GRPOCausal) dumpAfter(env Env, err error, g *generation, micros []*causalMicro, step int) error {
	if c.Dump.Every == 0 || (step-1)%c.Dump.Every != 0 {
		return err
	}
	if writing := c.dump(env, g, micros, step); err == nil {
		return writing
	}
	return err
}

func (c *GRPOCausal) dump(env Env, g *generation, micros []*causalMicro, step int) error {
	whole := micros
	if n := len(micros); n > 0 && micros[n-1].result.DLogp == nil {
		whole = micros[:n-1] // it failed before
	}
	return c.Dump.step(env, step, len(whole), func(path string, k int) error { return c.dumpFile(path, g, whole[k], k, step) })
}

func (c *GRPOCausal) dumpFile(path string, g *generation, m *causalMicro, k, step int) error {
	rows, cols, f := len(m.rows), m.batch.Response, len(c.RewardFuncs)
	meta := dump.Meta{Framework: "plumbline", Version: "1", Algorithm: "grpo", Profile: "trl-grpo@1.16", Step: step, WorldSize: 1, MicroBatch: k, MicroBatches: c.Accumulation,
		ComputeDType: "float64", DLogpScale: 1, ScalarsScope: "micro_batch", Options: c.options(g)}
	token := func(name string, x []float64) *dump.Tensor { return perToken(name, format.F64, rows, cols, x) }
	var ids, lengths, groups []float64
	for i, at := range m.rows {
		width := m.batch.Prompt + cols
		for _, id := range m.batch.IDs[i*width+m.batch.Prompt : (i+1)*width] {
			ids = append(ids, float64(id))
		}
		lengths, groups = append(lengths, float64(g.promptLen[at])), append(groups, float64(at/c.Generations))
	}
	tensors := []*dump.Tensor{dump.NewMask("response_mask", rows, cols, m.mask), perToken("response_ids", format.I32, rows, cols, ids), perRow("prompt_len", format.I32, lengths),
		perRow("group_id", format.I32, groups), perRow("scores", format.F64, pick(g.scores, 1, m.rows)), perRow("advantages", format.F64, pick(g.advantages, 1, m.rows)),
		{Name: "rewards_per_func", Layout: dump.PerRow, Width: f, Shape: []int{rows, f}, Data: pick(g.funcs, f, m.rows), Type: format.F64},
		token("logp_new", m.scores.LogProbs), token("logp_old", m.old), token("logp_gen", pick(g.gen, cols, m.rows)), token("entropy", m.scores.Entropy),
		token("token_loss", m.result.Token), token("dlogp", m.result.DLogp), perFile("loss", m.result.Loss)}
	if m.ref != nil {
		tensors = append(tensors, token("logp_ref", m.ref), token("kl", m.kl))
	}
	return dump.WriteFile(path, meta, tensors...)
}

// options say what the update was computed with, under neutral names.
func (c *GRPOCausal) options(g *generation) []dump.Option {
	o, l := c.loss(1), []dump.Option{}
	say := func(name string, value any) { l = append(l, dump.Option{Name: name, Value: value}) }
	say("loss.kind", o.Kind.String())
	say("ratio.level", o.Ratio.Level.String())
	if o.Kind == rl.LossCISPO {
		say("clip.low", "none")
	} else {
		say("clip.low", c.Epsilon)
	}
	say("clip.high", c.EpsilonHigh)
	say("clip.high_is_absolute", o.Clip.HighAbsolute)
	say("agg.kind", o.Agg.Kind.String())
	say("agg.denominator", o.Agg.Denominator.String())
	say("agg.div_ga", o.Agg.Steps != 0)
	say("agg.div_batch", o.Agg.DivBatch)
	say("kl.beta", c.Beta)
	say("kl.grad", o.KL.Grad.String())
	if advantage, how := c.advantage(); len(c.weights) > 1 && how == rl.NormalizeThenSum {
		say("adv.multi", how.String())
	} else {
		say("adv.scale", advantage.Scale.String())
	}
	say("entropy.coef", 0.0)
	say("token_loss_includes_kl", true)
	for name, value := range map[string]float64{"num_generations": float64(c.Generations), "gradient_accumulation_steps": float64(c.Accumulation), "max_completion_length": float64(c.MaxCompletion),
		"num_items_in_batch": float64(count(g.mask)), "optim.epochs": float64(c.Iterations)} {
		say(name, value)
	}
	var weights []any
	for _, w := range c.weights {
		weights = append(weights, w)
	}
	say("reward_weights", weights)
	slices.SortStableFunc(l, func(a, b dump.Option) int { return strings.Compare(a.Name, b.Name) })
	return l
}
