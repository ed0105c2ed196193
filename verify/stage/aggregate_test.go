package stage_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// reduction is an aggregation as a trainer writes it.
type reduction struct {
	kind, where         string
	counted, divGA, div bool
}

func (a reduction) String() string { return a.kind + " " + a.where }

func (a reduction) set(t require.TestingT, set *convention.Set) *convention.Set {
	word := map[bool]string{true: "true", false: "false"}
	rows := map[bool]string{true: "counted", false: "excluded"}
	mine := options(t, "agg.kind="+a.kind, "agg.denominator="+a.where, "agg.empty_rows="+rows[a.counted], "agg.len_eps=0", "agg.div_ga="+word[a.divGA],
		"agg.div_batch="+word[a.div], "mean.empty=zero", "value.coef=0", "entropy.coef=0")
	set, _ = set.Over(mine)
	return set
}

// weights returns the weight of every cell in the loss of its file.
func (a reduction) weights(b *dump.Batch, micro int) []float32 {
	w := make([]float32, b.Rows*b.Cols)
	count := func(keep func(f dump.FileInfo) bool) (tokens, rows float32) {
		for _, f := range b.Files {
			if !keep(f) {
				continue
			}
			for r := f.Lo; r < f.Hi; r++ {
				n := length(b, r)
				tokens += n
				if n > 0 || a.counted {
					rows++
				}
			}
		}
		return tokens, rows
	}
	ranks := float32(b.Meta.WorldSize)
	for f, file := range b.Files {
		tokens, rows := count(func(g dump.FileInfo) bool {
			switch a.where {
			case "rank":
				return g.Rank == file.Rank
			case "global":
				return true
			}
			return g.Lo == file.Lo
		})
		factor := float32(1)
		if a.where == "global" && a.kind != "luspo" && (a.kind != "seq_sum_const" || a.div) {
			factor = ranks
		}
		if a.divGA {
			factor /= float32(micro)
		}
		for r := file.Lo; r < file.Hi; r++ {
			n := length(b, r)
			for c := range b.Cols {
				i := r*b.Cols + c
				if !b.Mask[i] && (a.kind != "luspo" || c >= b.Files[f].Cols) {
					continue
				}
				switch a.kind {
				case "token":
					w[i] = factor / tokens
				case "seq_mean_token_mean":
					w[i] = factor / rows / n
				case "seq_mean_token_sum":
					w[i] = factor / rows
				case "seq_sum_const":
					w[i] = factor / float32(file.Cols)
					if a.div {
						w[i] /= rows
					}
				case "luspo":
					w[i] = factor * n / float32(file.Cols*(file.Hi-file.Lo))
				case "token_sum":
					w[i] = factor
				}
			}
		}
	}
	return w
}

func length(b *dump.Batch, r int) (n float32) {
	for _, m := range b.Mask[r*b.Cols : (r+1)*b.Cols] {
		if m {
			n++
		}
	}
	return n
}

func reductions() []reduction {
	var list []reduction
	for _, kind := range []string{"token", "seq_mean_token_mean", "seq_mean_token_sum", "seq_sum_const", "luspo", "token_sum"} {
		for i, where := range []string{"micro", "rank", "global"} {
			list = append(list, reduction{kind: kind, where: where, counted: i%2 == 0, divGA: i%2 == 1 || kind == "luspo", div: i != 1})
		}
	}
	return list
}

// fileSums adds weighted numbers of the tokens file by file.
func fileSums(b *dump.Batch, w []float32, x []float64) []float64 {
	var out []float64
	for _, f := range b.Files {
		var terms []float32
		for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
			terms = append(terms, w[i]*float32(x[i]))
		}
		out = append(out, float64(sum32(terms)))
	}
	return out
}

func TestLossOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for _, a := range reductions() {
		for seed := range cases(150) {
			tr := newTrainer(uint64(seed))
			b := tr.b
			x := tr.grid("token_loss", func(int) float64 { return tr.r.NormFloat64() })
			tr.perFile("loss", fileSums(b, a.weights(b, tr.micro), x))
			set := a.set(t, &convention.Set{})
			o := judged32(t, "aggregate/loss", b, set)
			log.pass(t, a.String(), o, seed)
			for f, file := range b.Files {
				if slices.Contains(b.Mask[file.Lo*b.Cols:file.Hi*b.Cols], true) {
					planted(t, "aggregate/loss", "loss", b, set, f)
				}
			}
		}
	}
	log.report(t)
}

// A program that divides what it propagates by the accumulation steps has every term of it before the division, not its policy loss alone.
func TestTermsBeforeTheDivision(t *testing.T) {
	log := ratioLog{}
	for seed := range cases(100) {
		a := reduction{kind: "token", where: "micro"}
		tr := newTrainer(uint64(seed))
		b := tr.b
		steps := float64(b.Meta.MicroBatches)
		x := tr.grid("token_loss", func(int) float64 { return tr.r.NormFloat64() })
		k := tr.grid("kl", func(int) float64 { return tr.r.ExpFloat64() })
		h := tr.grid("entropy", func(int) float64 { return tr.r.ExpFloat64() })
		w := a.weights(b, tr.micro)
		pg, kl, ent := fileSums(b, w, x), fileSums(b, w, k), fileSums(b, w, h)
		total := make([]float64, len(pg))
		for f := range pg {
			total[f] = round32(round32(pg[f]+.5*kl[f]-.01*ent[f]) / steps)
		}
		without := false
		b.Meta.TokenLossIncludesKL = &without
		for name, x := range map[string][]float64{"pg_loss": pg, "kl_loss": kl, "entropy_loss": ent, "loss": total} {
			tr.perFile(name, x)
		}
		a.divGA = true
		set := a.set(t, options(t, "kl.place=loss", "kl.beta=0.5")).With("entropy.coef", convention.NumberValue(.01), "test").With("value.coef", convention.NumberValue(0), "test")
		for _, id := range []string{"aggregate/pg_loss", "aggregate/kl_loss", "aggregate/entropy_loss", "aggregate/loss"} {
			log.pass(t, id, judged32(t, id, b, set), seed)
		}
	}
	for seed := range cases(100) {
		f := families()[0]
		a := reduction{kind: "token", where: "micro", divGA: true}
		tr := newTrainer(uint64(seed))
		b := tr.b
		tr.logprobs(f.drift)
		tr.losses(&f)
		h := tr.grid("entropy", func(int) float64 { return tr.r.ExpFloat64() })
		a.divGA = false
		w := a.weights(b, tr.micro)
		pg, ent := fileSums(b, w, b.Token("token_loss")), fileSums(b, w, h)
		total := make([]float64, len(pg))
		steps := float64(b.Meta.MicroBatches)
		for f := range pg {
			total[f] = round32(round32(pg[f]-.01*ent[f]) / steps)
		}
		tr.perFile("pg_loss", pg)
		tr.perFile("loss", total)
		a.divGA = true
		set := a.set(t, f.set(t)).With("entropy.coef", convention.NumberValue(.01), "test")
		b = b.Without("token_loss")
		log.pass(t, "loss from pg_loss", judged32(t, "aggregate/loss", b, set), seed)
		if steps > 1 && slices.Contains(b.Mask, true) {
			for f := range total {
				total[f] = pg[f] - .01*ent[f]/steps
			}
			require.Equal(t, check.Fail, judged32(t, "aggregate/loss", b, set).Verdict, "the policy loss alone is not divided")
		}
	}
	log.report(t)
}

func TestTermsOfTheLoss(t *testing.T) {
	log := ratioLog{}
	for seed := range cases(300) {
		// KL and entropy over tokens; the policy loss too, or over rows (verl's sapo beside its loss_agg_mode).
		a, policy, given := reduction{kind: "token", where: "micro"}, reduction{kind: "token", where: "micro"}, "same"
		if seed%2 == 1 {
			policy.kind, given = "seq_mean_token_mean", "token"
		}
		tr := newTrainer(uint64(seed))
		b := tr.b
		x := tr.grid("token_loss", func(int) float64 { return tr.r.NormFloat64() })
		k := tr.grid("kl", func(int) float64 { return tr.r.ExpFloat64() })
		h := tr.grid("entropy", func(int) float64 { return tr.r.ExpFloat64() })
		w := a.weights(b, tr.micro)
		pg, kl, ent := fileSums(b, policy.weights(b, tr.micro), x), fileSums(b, w, k), fileSums(b, w, h)
		vf := make([]float64, len(pg))
		total := make([]float64, len(pg))
		for f := range pg {
			vf[f] = round32(tr.r.ExpFloat64())
			total[f] = float64(float32(pg[f]) + float32(.1)*float32(vf[f]) - float32(.01)*float32(ent[f]) + float32(.5)*float32(kl[f]))
		}
		without := false
		b.Meta.TokenLossIncludesKL = &without
		for name, x := range map[string][]float64{"pg_loss": pg, "kl_loss": kl, "entropy_loss": ent, "value_loss": vf, "loss": total} {
			tr.perFile(name, x)
		}
		set := policy.set(t, options(t, "kl.place=loss", "kl.beta=0.5", "kl.agg="+given))
		set = set.With("value.coef", convention.NumberValue(.1), "test").With("entropy.coef", convention.NumberValue(.01), "test")
		for _, id := range []string{"aggregate/pg_loss", "aggregate/kl_loss", "aggregate/entropy_loss", "aggregate/loss"} {
			log.pass(t, id, judged32(t, id, b, set), seed)
		}
		chained := b.Without("token_loss")
		log.pass(t, "loss from pg_loss", judged32(t, "aggregate/loss", chained, set), seed)
		for _, wrong := range []string{"kl.beta", "value.coef", "entropy.coef"} {
			o := judged32(t, "aggregate/loss", b, set.With(wrong, convention.NumberValue(0.3), "test"))
			if slices.Contains(b.Mask, true) && seed > 0 {
				require.Equal(t, check.Fail, o.Verdict, wrong)
			}
		}
	}
	log.report(t)
}

func TestPaddingInADenominator(t *testing.T) {
	// The mean of a row divided by the padded width: trl's b_pad_in_denominator.
	tr := newTrainer(21)
	b := tr.b
	for r := range b.Rows {
		for c := range b.Cols {
			b.Mask[r*b.Cols+c] = c == 0
		}
	}
	require.Greater(t, b.Files[0].Cols, 1)
	x := tr.grid("token_loss", func(int) float64 { return 1 + tr.r.Float64() })
	a := reduction{kind: "seq_mean_token_mean", where: "micro", counted: true}
	w := a.weights(b, tr.micro)
	set := a.set(t, &convention.Set{})
	tr.perFile("loss", fileSums(b, w, x))
	require.Equal(t, check.Pass, judged32(t, "aggregate/loss", b, set).Verdict)
	for i := range w {
		w[i] /= float32(b.Files[b.Origin[i/b.Cols].File].Cols)
	}
	tr.perFile("loss", fileSums(b, w, x))
	o := judged32(t, "aggregate/loss", b, set)
	require.Equal(t, check.Fail, o.Verdict)
	require.NotEmpty(t, o.Pred.Terms(0))
}

func TestMissingFilesLeaveDenominatorsOpen(t *testing.T) {
	tr := newTrainer(30)
	b := tr.b
	tr.grid("token_loss", func(int) float64 { return 1 })
	tr.perFile("loss", make([]float64, len(b.Files)))
	b.Missing = []string{"step 1 rank 1 micro_batch 0"}
	for where, want := range map[string]check.Verdict{"micro": check.Fail, "rank": check.Undetermined, "global": check.Undetermined} {
		a := reduction{kind: "token", where: where}
		o := judged32(t, "aggregate/loss", b, a.set(t, &convention.Set{}))
		require.Equal(t, want, o.Verdict, where)
		if want == check.Undetermined {
			require.Contains(t, o.Lacking(), "rank 1 micro_batch 0")
		}
	}
	// A run that says how many tokens it divides by needs no other files.
	a := reduction{kind: "token", where: "global"}
	set := a.set(t, &convention.Set{}).WithFact("num_items_in_batch", 100.)
	require.Equal(t, check.Fail, judged32(t, "aggregate/loss", b, set).Verdict)
}

func TestNumItemsSpansAGenerationBatch(t *testing.T) {
	tr := newTrainer(33)
	b := tr.b
	x := tr.grid("token_loss", func(int) float64 { return tr.r.NormFloat64() })
	w := make([]float32, len(x))
	for i, m := range b.Mask {
		if m { // 120 tokens in a generation batch of three times the step's micro-batches
			w[i] = float32(tr.ranks) / (120 / 3.)
		}
	}
	tr.perFile("loss", fileSums(b, w, x))
	a := reduction{kind: "token", where: "global"}
	set := a.set(t, &convention.Set{}).WithFact("num_items_in_batch", 120.).WithFact("steps_per_generation", float64(3*tr.micro))
	require.Equal(t, check.Pass, judged32(t, "aggregate/loss", b, set).Verdict)
	require.Equal(t, check.Skip, judgedRules(t, "aggregate/num_items", b, set).Verdict)
	same := set.WithFact("steps_per_generation", float64(tr.micro))
	require.Equal(t, check.Fail, judgedRules(t, "aggregate/num_items", b, same).Verdict)
	var tokens float64
	for _, m := range b.Mask {
		if m {
			tokens++
		}
	}
	require.Equal(t, check.Pass, judgedRules(t, "aggregate/num_items", b, same.WithFact("num_items_in_batch", tokens)).Verdict)
}

// A wrong token count is named where one way of counting gives it, and only there.
func TestNumItemsNames(t *testing.T) {
	tr := newTrainer(33)
	b := tr.b
	tr.grid("token_loss", func(int) float64 { return 1 })
	tr.perFile("loss", make([]float64, len(b.Files)))
	var tokens, cells float64
	rows := map[int]bool{}
	for i, m := range b.Mask {
		if m {
			tokens++
			rows[i/b.Cols] = true
		}
	}
	for _, f := range b.Files {
		cells += float64((f.Hi - f.Lo) * f.Cols)
	}
	prompts := make([]float64, b.Rows)
	for i := range prompts {
		prompts[i] = 1000
	}
	b.Tensors["prompt_len"] = &dump.Tensor{Name: "prompt_len", Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: prompts, Type: format.I64}
	wants := map[float64]string{
		cells: "AGG-PAD-DENOMINATOR", tokens - float64(len(rows)): "AGG-LENGTH-OFF-BY-ONE", tokens + 1000*float64(b.Rows): "AGG-PROMPT-COUNTED", tokens + 0.5: "",
	}
	if n := float64(b.Meta.MicroBatches); n > 1 {
		wants[n*tokens] = "AGG-GA-TWICE"
		first := 0.0
		for i, m := range b.Mask {
			if m && i/b.Cols < b.Files[0].Hi {
				first++
			}
		}
		if n*first != tokens {
			wants[n*first] = "AGG-DENOMINATOR"
		}
	}
	for n, want := range wants {
		o := judgedRules(t, "aggregate/num_items", b, (&convention.Set{}).WithFact("num_items_in_batch", n))
		require.Equal(t, check.Fail, o.Verdict)
		require.Equal(t, want, o.Rules.Violations[0].Fault, "%g of %g tokens: %s", n, tokens, o.Rules.Violations[0].Reason)
	}
}

// The cells of packed rows are those of the file, not of the sequences that they were taken apart into; and rows that lost their labels behind the count
// are told by the excess, where the attention mask has them.
func TestNumItemsOfLabels(t *testing.T) {
	const rows, cols = 4, 6
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Files: []dump.FileInfo{{Hi: rows, Cols: cols, Stored: [2]int{2, 15}, Packed: true}},
		Origin: []dump.Origin{{}, {Col: 6}, {Row: 1}, {Row: 1, Col: 6}}, Meta: dump.Meta{Algorithm: "sft", WorldSize: 1, MicroBatches: 1}}
	attention := make([]float64, rows*(cols+1))
	for r := range rows {
		for i := range cols {
			b.Mask[r*cols+i] = r < 3 && i > 1
			attention[r*(cols+1)+i] = 1
		}
	}
	b.Tensors["attention_mask"] = &dump.Tensor{Name: "attention_mask", Layout: dump.PerRow, Width: cols + 1, Data: attention, Type: format.I64}
	b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{1}, Type: format.F32}
	for n, want := range map[float64]string{12: "", 30: "AGG-PAD-DENOMINATOR", 14: "AGG-COUNTS-MASKED", 19: "", 10: ""} {
		o := judgedRules(t, "aggregate/num_items", b, (&convention.Set{}).WithFact("num_items_in_batch", n))
		if n == 12 {
			require.Equal(t, check.Pass, o.Verdict)
			continue
		}
		require.Equal(t, check.Fail, o.Verdict)
		require.Equal(t, want, o.Rules.Violations[0].Fault, "%g: %s", n, o.Rules.Violations[0].Reason)
	}
}

func TestNaNOutsideTheMask(t *testing.T) {
	tr := newTrainer(0)
	b := tr.b
	b.Mask[0] = false
	b.Mask[len(b.Mask)-1] = b.Mask[len(b.Mask)-1] && len(b.Mask) > 1
	x := tr.grid("token_loss", func(int) float64 { return 1 })
	a := reduction{kind: "token", where: "micro"}
	finite := fileSums(b, a.weights(b, 1), x)
	x[0] = math.NaN()
	tr.perFile("loss", finite)
	set := a.set(t, &convention.Set{})
	o := judged32(t, "aggregate/loss", b, set)
	require.Equal(t, check.Pass, o.Verdict, "a finite loss shows that masked cells were selected away")
	require.NotContains(t, o.Case.Read, "mean.nan_outside")
	require.Equal(t, check.Pass, judgedRules(t, "aggregate/finite", b, set).Verdict)

	poisoned := slices.Clone(finite)
	poisoned[0] = math.NaN()
	tr.perFile("loss", poisoned)
	o = judged32(t, "aggregate/loss", b, set)
	require.Equal(t, []string{"mean.nan_outside"}, o.Case.Unknown)
	for rule, want := range map[string]check.Verdict{"propagate": check.Pass, "ignore": check.Fail} {
		s := set.With("mean.nan_outside", must(convention.Parse("mean.nan_outside", rule)), "test")
		require.Equal(t, want, judged32(t, "aggregate/loss", b, s).Verdict, rule)
	}
	rules := judgedRules(t, "aggregate/finite", b, set)
	require.Equal(t, check.Fail, rules.Verdict)
	require.Contains(t, rules.Rules.Violations[0].Reason, "outside the mask")
}

func TestALossThatCancelsIsComparedWithItsTerms(t *testing.T) {
	b := &dump.Batch{Rows: 2, Cols: 1, Mask: []bool{true, true}, Tensors: map[string]*dump.Tensor{}, Origin: []dump.Origin{{Cols: 1}, {Row: 1, Cols: 1}},
		Files: []dump.FileInfo{{Hi: 2, Cols: 1}}, Meta: dump.Meta{WorldSize: 1, MicroBatches: 1, TokenLossIncludesKL: new(true)}}
	tr := &trainer{b: b}
	tr.put("token_loss", []float64{0.25, -0.25})
	tr.perFile("loss", []float64{1e-9})
	a := reduction{kind: "token", where: "micro"}
	o := judged32(t, "aggregate/loss", b, a.set(t, &convention.Set{}))
	require.Equal(t, check.Pass, o.Verdict)
	require.InDelta(t, 0.25, o.Tally.Scale, 1e-12)
	require.Less(t, o.Tally.Resolution(), 1e-6)
}

func TestLongRowsKeepAResolution(t *testing.T) {
	const n = 131072
	b := &dump.Batch{Rows: 1, Cols: n, Mask: slices.Repeat([]bool{true}, n), Tensors: map[string]*dump.Tensor{}, Origin: []dump.Origin{{Cols: n}},
		Files: []dump.FileInfo{{Hi: 1, Cols: n}}, Meta: dump.Meta{WorldSize: 1, MicroBatches: 1, TokenLossIncludesKL: new(true)}}
	tr := &trainer{b: b}
	tr.put("token_loss", slices.Repeat([]float64{0.5}, n))
	tr.perFile("loss", []float64{0.5})
	for _, a := range []reduction{{kind: "token", where: "micro"}, {kind: "seq_mean_token_mean", where: "micro"}} {
		o := judged32(t, "aggregate/loss", b, a.set(t, &convention.Set{}))
		require.Equal(t, check.Pass, o.Verdict)
		require.Less(t, o.Tally.Resolution(), 3e-4, a)
		t.Logf("%s: resolution %.1e", a, o.Tally.Resolution())
	}
}

func TestTermsNameTheDenominator(t *testing.T) {
	tr := newTrainer(12)
	tr.grid("token_loss", func(int) float64 { return 1 })
	tr.perFile("loss", make([]float64, len(tr.b.Files)))
	a := reduction{kind: "token", where: "global", divGA: true}
	o := judged32(t, "aggregate/loss", tr.b, a.set(t, &convention.Set{}))
	var names []string
	for _, term := range o.Pred.Terms(0) {
		names = append(names, term.Name)
	}
	require.Contains(t, strings.Join(names, ", "), "denominator tokens")
	require.Contains(t, strings.Join(names, ", "), "accumulation steps")
}

func TestLossInFloat64(t *testing.T) {
	tr := newTrainer(40)
	b := tr.b
	x := tr.grid("token_loss", func(int) float64 { return tr.r.NormFloat64() })
	var exact []float64
	for _, f := range b.Files {
		var sum, n float64
		for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
			if b.Mask[i] {
				sum += x[i]
				n++
			}
		}
		exact = append(exact, sum/max(n, 1))
	}
	tr.perFile("loss", exact)
	b.Tensors["loss"].Type = format.F64
	b.Meta.ComputeDType = "float64"
	a := reduction{kind: "token", where: "micro"}
	o := judgedRules(t, "aggregate/loss", b, a.set(t, &convention.Set{}))
	require.Equal(t, check.Pass, o.Verdict)
	require.Less(t, o.Tally.Resolution(), 1e-13)
	require.Equal(t, tol.U64, o.Arithmetic.Unit)
}
