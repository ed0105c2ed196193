package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/reference/optim"
	"plumbline/reference/rl"
)

// ShieldedEnv is what [Shielded.Train] works with.
type ShieldedEnv struct {
	Env
	Prompts []string
	Basis   *Basis // nil: nothing is shielded and nothing measured
}

// shieldedRun is a run under way.
type shieldedRun struct {
	*Shielded
	env ShieldedEnv
	*run
	params []Param
	shield *Shield
	init   [][]float64 // the parameters before training, W_init
	ended  shieldState
	warned once
}

// answers are the responses that an update learns from.
type answers struct {
	batch                    Batch
	mask                     []bool
	old, ref, gen            []float64 // [B, R]
	scores, adv              []float64 // [B]; [B, R], the same for all tokens of a row
	promptLen                []int
	prompts, texts           []string
	tokens, cut, unended, no int // response tokens; prompts that were cut; responses without an end; without a token
}

// Train runs the algorithm of systems A.3: explanations drawn from the policy, a batch-whitened advantage, the clipped surrogate with
// the k3 penalty to the model without its adapter, and an update whose part in span(Q) is taken away before it is applied. It returns
// the metrics of the last update.
func (c *Shielded) Train(ctx context.Context, env ShieldedEnv) (last []rl.Metric, err error) {
	r := &shieldedRun{Shielded: c, env: env, params: env.Policy.Params(), warned: once{}}
	if len(r.params) == 0 {
		fmt.Fprintln(env.Out, "no trainable parameters")
		return nil, unfit("no trainable parameters (A10)")
	}
	if len(env.Prompts) == 0 {
		return nil, unfit("there are no prompts")
	}
	if env.Basis != nil {
		if r.shield, err = NewShield(env.Basis, r.params, c.Projection.Skip); err != nil {
			return nil, err
		}
		r.ended.Basis = env.Basis.Fingerprint()
		fmt.Fprintf(env.Out, "shield: %s basis (%d, %d), projection of the %s, %d passes\n", r.shield.Kind, r.shield.D, r.shield.K, c.Projection.Mode, c.Projection.Passes)
		for _, name := range r.shield.Bare {
			fmt.Fprintf(env.Out, "shield: %s is not shielded\n", name)
		}
	}
	if err := r.settle(); err != nil || c.InitOnly {
		return nil, err
	}
	perEpoch := (len(env.Prompts) + c.PPOBatch - 1) / c.PPOBatch
	steps := cmp.Or(c.Steps, c.Epochs*perEpoch)
	r.run, err = env.begin(plan{trainer: "shielded", model: env.Policy, base: env.Policy.Fingerprint(), optimizer: env.optimizer(r.params, false), steps: steps, every: c.SaveEvery,
		files: r.shieldFiles, restore: r.restoreShield, options: map[string]string{"kl_beta": fmt.Sprint(c.KLBeta)}})
	if err != nil {
		return nil, err
	}
	defer r.close()
	order := dataset.NewOrder(rng.New(c.Seed, streamData), len(env.Prompts))
	began := time.Now()
	err = r.train(ctx, func() error {
		at, step := time.Now(), r.Step+1
		a, err := r.explain(ctx, order, step)
		if err != nil {
			return err
		}
		r.Step, r.Samples, r.Tokens = step, r.Samples+c.PPOBatch, r.Tokens+a.tokens
		for inner := range c.InnerEpochs {
			if last, err = r.update(a, inner); err != nil {
				return err
			}
		}
		reward := mean(a.scores)
		r.ended.Steps, r.ended.Reward, r.ended.KL = r.ended.Steps+1, r.ended.Reward+reward, r.ended.KL+metric(last, "kl")
		last = append(last, rl.Metric{Name: "reward_mean", Value: reward})
		if c.Reward == "clicks" {
			last = append(last, rl.Metric{Name: "ctr_step", Value: reward})
		}
		if step%perEpoch == 0 {
			n := float64(r.ended.Steps)
			last = append(last, rl.Metric{Name: "ctr", Value: r.ended.Reward / n}, rl.Metric{Name: "kl_epoch", Value: r.ended.KL / n},
				rl.Metric{Name: "epoch_time", Value: time.Since(began).Seconds()})
			r.ended.Steps, r.ended.Reward, r.ended.KL, began = 0, 0, 0, time.Now()
		}
		last = append(last, rl.Metric{Name: "time_step_ms", Value: float64(time.Since(at).Microseconds()) / 1e3}, rl.Metric{Name: "mem_peak_mb", Value: heldMB()})
		if err := r.log(step, true, r.line(step, (step-1)/perEpoch+1, a, last)); err != nil {
			return err
		}
		if step%c.LogEvery == 0 || step == steps {
			return r.report(step, steps, a, last)
		}
		return nil
	})
	if err != nil {
		return last, err
	}
	if r.shield != nil {
		fmt.Fprintf(env.Out, "shield: %s basis (%d, %d), orthonormal to %.2g, shield_drift %.3g (limit %g)\n", r.shield.Kind, r.shield.D, r.shield.K,
			env.Basis.Defect(), r.drift(), leakLimit)
	}
	return last, nil
}

// leakLimit is what max|Qᵀv| / max(1, ‖v‖) stays below: the 1e-5 of source document A.
const leakLimit = 1e-5

// heldMB is the memory that the process has from the system, in 10⁶ bytes.
func heldMB() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Sys) / 1e6
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(max(1, len(x)))
}

// explain draws an explanation for each of the next prompts.
func (r *shieldedRun) explain(ctx context.Context, order *dataset.Order, step int) (*answers, error) {
	a, tok, first, drawing := &answers{}, r.env.Tokenizer, r.Samples, r.rollout(r.PPOBatch, r.MaxNew)
	sampling := Sampling{Temperature: r.Temperature, TopP: r.TopP, MaxNew: r.MaxNew}
	var prompts, responses [][]int
	var gen [][]float64
	for from := 0; from < r.PPOBatch; from += r.SimBatch {
		var users [][]int
		for i := range min(r.SimBatch, r.PPOBatch-from) {
			text := r.env.Prompts[order.At(first+from+i)]
			ids := tok.Encode(text)
			if len(ids) > r.MaxPrompt {
				ids = ids[len(ids)-r.MaxPrompt:]
				a.cut++
			}
			if len(ids) == 0 {
				return nil, unfit("the prompt %.40q has no tokens", text)
			}
			users, a.prompts, a.promptLen = append(users, ids), append(a.prompts, text), append(a.promptLen, len(ids))
		}
		ids, lp, err := r.env.Policy.Sample(ctx, leftPad(users, tok.Pad()), sampling, rng.New(r.Seed, streamSample), first+from, tok.EOS(), drawing.next(len(users)))
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		prompts, responses, gen = append(prompts, users...), append(responses, ids...), append(gen, lp...)
	}
	a.batch, a.mask = leftPad(prompts, tok.Pad()).withResponses(responses, tok.Pad())
	cols := a.batch.Response
	answered := make([]bool, len(responses))
	for i, ids := range responses {
		a.tokens += len(ids)
		answered[i] = len(ids) > 0
		switch {
		case len(ids) == 0:
			a.no++
		case ids[len(ids)-1] != tok.EOS():
			a.unended++
		}
		text := tok.Decode(ids)
		a.texts, a.scores = append(a.texts, text), append(a.scores, r.score(text, first+i))
	}
	if a.tokens == 0 {
		return nil, unfit("step %d: no response has a token", step)
	}
	// In the micro-batches of the update, so that the first ratio is 1 and the first KL is 0 to the last bit.
	now, ref, err := scored(ctx, r.env.Policy, a.batch, r.Micro, true, true)
	if err != nil {
		return nil, err
	}
	a.gen, a.old, a.ref = padded(gen, cols), now.LogProbs, ref
	for i, x := range [][]float64{a.old, a.ref} {
		if err := finite(step, [...]string{"log-probabilities", "reference log-probabilities"}[i], x, a.mask); err != nil {
			return nil, err
		}
	}
	if err := finite(step, "reward", a.scores, nil); err != nil {
		return nil, err
	}
	// (r − mean)/√(var + 1e-8) over the rows that have an answer, exactly 0 where all rewards are equal.
	white, err := rl.Whiten(nil, a.scores, answered, len(a.scores), 1, rl.WhitenOptions{Scope: rl.ScopeGlobal, EpsPlace: rl.InsideSqrt, Eps: 1e-8,
		Var: rl.VarOptions{Single: rl.SingleZero, Mean: rl.MeanOptions{Outside: rl.OutsideIgnore}}, Remask: true, ConstantZero: true})
	a.adv = rl.Broadcast(nil, white, a.mask, len(a.scores), cols)
	return a, err
}

// update makes one update from all the answers.
func (r *shieldedRun) update(a *answers, inner int) ([]rl.Metric, error) {
	cols, step := a.batch.Response, r.Step
	var pg, kl, ratioSum float64
	ratioLow, ratioHigh := math.Inf(1), math.Inf(-1)
	agg := rl.AggOptions{Kind: rl.AggToken, Denominator: rl.AggRank, Tokens: float64(a.tokens), Outside: rl.OutsideIgnore}
	options := rl.PolicyOptions{Kind: rl.LossPPO, Ratio: rl.RatioOptions{Level: rl.RatioToken, LogClamp: 20}, Clip: rl.ClipOptions{Low: r.ClipEps, High: r.ClipEps},
		KL: rl.KLOptions{Kind: rl.KLK3}, KLBeta: r.KLBeta, Agg: agg}
	d := r.dumper(a)
	for index := range slices.Chunk(span(0, a.batch.Rows), r.Micro) {
		mask := pick(a.mask, cols, index)
		b := rl.PolicyBatch{Rows: len(index), Cols: cols, Old: pick(a.old, cols, index), Ref: pick(a.ref, cols, index), Adv: pick(a.adv, cols, index), Mask: mask}
		err := r.env.Policy.Accumulate(a.batch.rows(index), func(now Scores) (Slopes, error) {
			b.LogProbs = now.LogProbs
			var res rl.PolicyResult
			if err := rl.Policy(&res, b, options); err != nil {
				return Slopes{}, err
			}
			tokens, _ := rl.PPO(nil, nil, res.Ratio, b.Adv, options.Clip)
			part, _, err := rl.Aggregate(nil, tokens, mask, b.Rows, cols, agg)
			if err != nil {
				return Slopes{}, err
			}
			k3, _ := rl.KL(nil, nil, b.LogProbs, b.Ref, nil, options.KL)
			partKL, _, err := rl.Aggregate(nil, k3, mask, b.Rows, cols, agg)
			if err != nil {
				return Slopes{}, err
			}
			pg, kl = pg+part, kl+partKL
			for i, rho := range res.Ratio {
				if mask[i] {
					ratioSum, ratioLow, ratioHigh = ratioSum+rho, min(ratioLow, rho), max(ratioHigh, rho)
				}
			}
			d.add(index, b, res, k3, part, partKL)
			return Slopes{LogProbs: res.DLogp}, finite(step, "loss", []float64{res.Loss}, nil)
		})
		if err != nil {
			return nil, errors.Join(err, d.write())
		}
	}
	if inner == 0 && !(math.Abs(ratioLow-1) < 1e-3 && math.Abs(ratioHigh-1) < 1e-3) {
		return nil, errors.Join(unfit("step %d: the ratio of the first update from a rollout is %g to %g, not 1 (H1): the old log-probabilities are not those of the policy that wrote the answers", step, ratioLow, ratioHigh), d.write())
	}
	moved, err := r.move(inner, d)
	if err := errors.Join(err, d.write()); err != nil {
		return nil, err
	}
	list := []rl.Metric{{Name: "loss", Value: pg + float64(r.KLBeta*kl)}, {Name: "loss_pg", Value: pg}, {Name: "loss_kl", Value: float64(r.KLBeta * kl)}, {Name: "kl", Value: kl},
		{Name: "ratio_mean", Value: ratioSum / float64(a.tokens)}, {Name: "ratio_min", Value: ratioLow}, {Name: "ratio_max", Value: ratioHigh}}
	return append(list, moved...), nil
}

// move is backward → gradient flow → clip → optimiser step → projection of the update → add, or with projection.mode grad backward →
// gradient flow → projection of the gradient → clip → optimiser step.
func (r *shieldedRun) move(inner int, d *shieldedDump) ([]rl.Metric, error) {
	flows := r.FlowEvery > 0 && inner == 0 && (r.Step-1)%r.FlowEvery == 0
	mode := r.Projection.Mode
	moved, err := r.optimizer.Step(Update{Step: r.Step, Rule: optim.Adam{LR: r.LR, Beta1: .9, Beta2: .999, Eps: 1e-8}, SGD: r.Optimizer == "sgd", MaxNorm: r.MaxNorm,
		Shield: &Shielding{Shield: r.shield, Mode: mode, Passes: r.Projection.Passes, Initial: r.init, Flow: flows, Keep: d != nil}})
	if err != nil {
		return nil, err
	}
	r.Updates++
	if d != nil {
		d.moved = &moved
	}
	var list []rl.Metric
	add := func(name string, value float64) { list = append(list, rl.Metric{Name: name, Value: value}) }
	if flows {
		low, high, mean := flow(moved.Flow)
		fmt.Fprintf(r.env.Out, "Gradient flow: min=%.6f, max=%.6f, mean=%.6f\n", low, high, mean)
		for i, p := range r.params {
			add("grad_flow/"+p.Name, moved.Flow[i])
		}
	}
	add("grad_norm_raw", moved.Norm)
	if r.shield != nil {
		add("grad_norm_projected", moved.ProjectedNorm)
		if mode != ProjectOff {
			add("proj_max_before", moved.Before)
			add("proj_max_after", moved.After)
			if moved.Before > leakLimit && moved.Idle {
				return nil, unfit("step %d: the projection changed nothing and max|Qᵀv| is %.3g (H2): it does nothing", r.Step, moved.Before)
			}
			if !(moved.After < leakLimit) {
				r.warned.warn(r.env.Env, "H3c", "step %d: after the projection max|Qᵀv|/max(1, ‖v‖) is %.3g (A5, H3c): the basis is not orthonormal enough for %d passes", r.Step, moved.After, r.Projection.Passes)
			}
		}
	}
	add("time_project_ms", float64(moved.Spent.Nanoseconds())/1e6)
	if r.shield != nil {
		add("shield_drift", moved.Drift)
		if !(moved.Drift < leakLimit) && mode == ProjectGrad {
			r.warned.warn(r.env.Env, "H3a", "step %d: shield_drift %.3g (H3a): the gradients are projected and the weights leak, because the optimiser scales every coordinate by its own factor; projection.mode=update", r.Step, moved.Drift)
		}
	}
	return list, nil
}

// drift returns what of W − W_init lies in the span of the basis.
func (r *shieldedRun) drift() float64 {
	return r.shield.Leak((&Shielding{Initial: r.init}).delta(r.params))
}
