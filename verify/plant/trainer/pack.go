package trainer

import (
	"fmt"
	"math"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// pack stores what was computed as a dump, and returns it with what the trainer declares.
func (r *run[F]) pack() (*dump.Batch, *convention.Set) {
	b := &dump.Batch{
		Rows: r.rows, Cols: r.cols, Mask: r.mask, Tensors: map[string]*dump.Tensor{},
		Meta: dump.Meta{
			Framework: frameworks[r.o.framework], Algorithm: r.algorithm(), Step: 1,
			WorldSize: r.ranks(), MicroBatches: r.micros(), DLogpScale: 1, ScalarsScope: "micro_batch",
			TokenLossIncludesKL: &r.includesKL,
		},
	}
	if _, version, ok := strings.Cut(r.o.profile, "@"); ok {
		b.Meta.Version = version
	}
	if r.fill == r.fill {
		fill := r.fill
		b.Meta.MaskedFill = &fill
	}
	b.Meta.ComputeDType = r.Compute.String()
	if r.Round != nil {
		b.Meta.ComputeDType = format.F32.String()
	}
	if r.FirstStep {
		b.Meta.Step = 0
	}
	for f, s := range r.spans {
		info := dump.FileInfo{Name: fmt.Sprintf("rank_%d_mb_%d.safetensors", s.rank, s.micro), Rank: s.rank, MicroBatch: s.micro,
			Lo: s.lo, Hi: s.hi, Cols: r.cols, Stored: [2]int{s.hi - s.lo, r.cols}, PromptCols: r.width}
		for _, m := range r.scalars[f] {
			info.Scalars = append(info.Scalars, dump.Scalar{Name: m.name, Value: m.value})
		}
		b.Files = append(b.Files, info)
		for row := s.lo; row < s.hi; row++ {
			b.Origin = append(b.Origin, dump.Origin{File: f, Row: row - s.lo, Cols: r.cols})
		}
	}
	if r.stepScope {
		b.Meta.ScalarsScope = "optimizer_step"
		b.Meta.Scalars = b.Files[0].Scalars
	}
	r.packTokens(b)
	r.packRows(b)
	r.packFiles(b)
	set := r.declared()
	for _, name := range set.Names() {
		b.Meta.Options = append(b.Meta.Options, dump.Option{Name: name, Value: plainValue(set.Value(name))})
	}
	for _, name := range set.Facts() {
		v, _ := set.Fact(name)
		b.Meta.Options = append(b.Meta.Options, dump.Option{Name: name, Value: v})
	}
	return b, set
}

// frameworks are the names that dumps have for them.
var frameworks = map[string]string{"TRL": "trl", "verl": "verl", "OpenRLHF": "openrlhf", "NeMo-RL": "nemo-rl", "CleanRL": "cleanrl"}

func (r *run[F]) algorithm() string {
	switch r.o.advKind {
	case "gae":
		return "ppo"
	case "rfpp", "rfpp_baseline":
		return "reinforce++"
	}
	return "grpo"
}

// floats stores a tensor in the type of the dump.
func (r *run[F]) floats(b *dump.Batch, name string, l dump.Layout, width int, x []F) {
	if x == nil {
		return
	}
	t := &dump.Tensor{Name: name, Layout: l, Width: width, Type: r.DType, Data: make([]float64, len(x))}
	for i, v := range x {
		t.Data[i] = format.Round(float64(v), r.DType)
	}
	if size, computed := r.DType.Size(), r.Compute.Size(); size < computed {
		t.Casts = true
		b.Meta.Lossy = append(b.Meta.Lossy, name)
	}
	switch l {
	case dump.PerToken:
		t.Shape = []int{r.rows, r.cols}
	case dump.PerRow:
		t.Shape = []int{r.rows}
	case dump.Free:
		t.Shape = []int{len(x)}
	}
	if width > 1 {
		t.Shape = append(t.Shape, width)
	}
	b.Tensors[name] = t
}

func (r *run[F]) integers(b *dump.Batch, name string, l dump.Layout, width int, x []float64) {
	t := &dump.Tensor{Name: name, Layout: l, Width: width, Type: format.I64, Data: x, Shape: []int{r.rows}}
	if l == dump.PerToken {
		t.Shape = append(t.Shape, r.cols)
	} else if width > 1 {
		t.Shape = append(t.Shape, width)
	}
	b.Tensors[name] = t
}

func asFloats(x []int) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func truths(x []bool) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		if v {
			y[i] = 1
		}
	}
	return y
}

func (r *run[F]) packTokens(b *dump.Batch) {
	r.integers(b, "response_ids", dump.PerToken, 1, asFloats(r.ids))
	r.floats(b, "logp_new", dump.PerToken, 1, r.lp[newPolicy])
	r.floats(b, "logp_old", dump.PerToken, 1, r.lp[oldPolicy])
	r.floats(b, "logp_gen", dump.PerToken, 1, r.lp[genPolicy])
	r.floats(b, "logp_ref", dump.PerToken, 1, r.lp[refPolicy])
	r.floats(b, "logits", dump.PerToken, r.vocab, r.rawLogits)
	r.floats(b, "entropy", dump.PerToken, 1, r.entropy)
	r.floats(b, "token_rewards", dump.PerToken, 1, r.token)
	r.floats(b, "values", dump.PerToken, 1, r.values0)
	r.floats(b, "values_new", dump.PerToken, 1, r.values1)
	r.floats(b, "returns", dump.PerToken, 1, r.returns)
	r.floats(b, "dlogp", dump.PerToken, 1, r.dlogp)
	r.floats(b, "dvalues", dump.PerToken, 1, r.dvalues)
	switch {
	case r.o.klKind == "seq_prob":
		r.floats(b, "kl", dump.PerRow, 1, r.kl)
	default:
		r.floats(b, "kl", dump.PerToken, 1, r.kl)
	}
	if r.rowAdv != nil && !r.broadcast {
		r.floats(b, "advantages", dump.PerRow, 1, r.rowAdv)
	} else {
		r.floats(b, "advantages", dump.PerToken, 1, r.adv)
	}
	r.packWeights(b)
	if r.rowLoss != nil {
		r.floats(b, "token_loss", dump.PerRow, 1, r.rowLoss)
		r.includesKL = false
		return
	}
	loss := r.policyLoss
	if r.o.term() && r.includesKL && r.o.klKind != "seq_prob" {
		loss = make([]F, len(loss))
		beta := r.klSign() * r.beta()
		for i, l := range r.policyLoss {
			k := r.mul(beta, r.kl[i])
			if r.isw != nil && r.o.klWeighted {
				k = r.mul(k, r.isw[i])
			}
			loss[i] = r.add(l, k)
		}
	} else {
		r.includesKL = !r.o.term()
	}
	r.floats(b, "token_loss", dump.PerToken, 1, loss)
}

// packWeights stores the engine's weights, those of sequences as one column.
func (r *run[F]) packWeights(b *dump.Batch) {
	if r.isw == nil {
		return
	}
	if !r.weightOfRow() {
		r.floats(b, "is_weights", dump.PerToken, 1, r.isw)
		return
	}
	w := make([]F, r.rows)
	for row := range w {
		w[row] = r.isw[row*r.cols]
	}
	r.floats(b, "is_weights", dump.PerRow, 1, w)
}

func (r *run[F]) packRows(b *dump.Batch) {
	s := r.width + r.cols
	r.integers(b, "input_ids", dump.PerRow, s, asFloats(r.inputIDs))
	r.integers(b, "attention_mask", dump.PerRow, s, truths(r.attended))
	r.integers(b, "prompt_len", dump.PerRow, 1, asFloats(r.promptOf))
	r.integers(b, "group_id", dump.PerRow, 1, asFloats(r.groups))
	switch {
	case r.o.scoreIndex == "" && r.o.kind("gae"): // an environment has no scores
	case r.functions > 1:
		r.floats(b, "rewards_per_func", dump.PerRow, r.functions, r.rewards)
	default:
		r.floats(b, "scores", dump.PerRow, 1, r.rewards)
	}
	if r.o.advKind == "remax" {
		greedy := make([]F, r.rows)
		for row := range greedy {
			greedy[row] = r.num(r.values[row*r.cols])
		}
		r.floats(b, "reward_baselines", dump.PerRow, 1, greedy)
	}
	if r.o.bootstrap {
		r.floats(b, "next_values", dump.PerRow, 1, make([]F, r.rows)) // every episode has ended
	}
}

func (r *run[F]) packFiles(b *dump.Batch) {
	r.floats(b, "loss", dump.PerFile, 1, r.loss)
	r.floats(b, "pg_loss", dump.PerFile, 1, r.pg)
	r.floats(b, "kl_loss", dump.PerFile, 1, r.klLoss)
	r.floats(b, "value_loss", dump.PerFile, 1, r.vf)
	r.floats(b, "entropy_loss", dump.PerFile, 1, r.ent)
	r.floats(b, "grad", dump.Free, 1, r.bias)
}

// declared returns the options of the run with the facts of this step.
func (r *run[F]) declared() *convention.Set {
	s := r.Set.WithFact("gradient_accumulation_steps", float64(r.micros())).
		WithFact("max_completion_length", float64(r.maxLength)).
		WithFact("eos_token_id", float64(r.eos)).
		WithFact("pad_token_id", float64(r.pad)).
		WithFact("vocab_size", float64(r.vocab)).
		WithFact("first_step", r.FirstStep)
	if r.o.kind("group", "rfpp_baseline", "opo", "passk", "gpg", "optimal_token_baseline") {
		s = s.WithFact("num_generations", float64(r.Group))
	}
	if r.functions > 1 {
		var w []any
		for _, x := range r.weights {
			w = append(w, x)
		}
		s = s.WithFact("reward_weights", w)
	}
	if r.o.denominator == "constant" {
		s = s.WithFact("loss_denominator", r.constant())
	}
	for _, d := range r.dropped {
		if d {
			s = s.WithFact("mask_truncated_completions", true)
		}
	}
	if _, known := s.Fact("steps_per_generation"); known {
		tokens := count(r.truth)
		if r.generations > 1 {
			tokens += r.otherTokens
		}
		s = s.WithFact("steps_per_generation", float64(r.generations*r.micros()))
		if r.o.agg == "token" && r.o.denominator == "global" {
			s = s.WithFact("num_items_in_batch", float64(tokens))
		}
	}
	return s
}

// plainValue returns a value as a file has it.
func plainValue(v convention.Value) any {
	switch v.Kind() {
	case convention.Number:
		return v.Num()
	case convention.Bool:
		return v.Bool()
	case convention.Enum:
		return v.Text()
	case convention.Tuple:
		var list []any
		for _, x := range v.Nums() {
			list = append(list, x)
		}
		return list
	case convention.None:
		return "none"
	}
	return math.NaN()
}
