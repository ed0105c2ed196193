package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

func TestSFTLossOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for seed := range cases(300) {
		tr := newTrainer(uint64(seed))
		b := tr.b
		b.Meta.Algorithm = "sft"
		lp := tr.grid("logp_new", func(int) float64 { return -tr.r.ExpFloat64() })
		for i := range lp {
			lp[i] = -lp[i]
		}
		a := reduction{kind: "token", where: []string{"micro", "global"}[seed%2]}
		loss := fileSums(b, a.weights(b, tr.micro), lp)
		for i := range lp {
			lp[i] = -lp[i]
		}
		tr.perFile("loss", loss)
		set := options(t, "agg.denominator="+a.where, "mean.empty=zero")
		o := judged32(t, "preference/sft_loss", b, set)
		log.pass(t, a.where, o, seed)
		for f, file := range b.Files {
			if anyTrue(b.Mask[file.Lo*b.Cols : file.Hi*b.Cols]) {
				planted(t, "preference/sft_loss", "loss", b, set, f)
			}
		}
	}
	log.report(t)
}

func TestSFTLossDividesByWhatTheRunSays(t *testing.T) {
	tr := single(3)
	b := tr.b
	b.Meta.Algorithm = "sft"
	tr.grid("logp_new", func(int) float64 { return -1 })
	tr.perFile("loss", make([]float64, len(b.Files)))
	for f, file := range b.Files {
		for r := file.Lo; r < file.Hi; r++ {
			b.PerFile("loss")[f] += round32(float64(length(b, r)) / 64)
		}
	}
	items := (&convention.Set{}).WithFact("num_items_in_batch", 64.)
	require.Equal(t, check.Pass, judged32(t, "preference/sft_loss", b, items).Verdict)
	require.Equal(t, check.Skip, stage.Judge(stage.Find("aggregate/loss"), b, items).Verdict)
	require.Equal(t, check.Fail, judged32(t, "preference/sft_loss", b, options(t, "agg.denominator=micro")).Verdict)
	if len(b.Files) > 1 {
		require.Equal(t, []string{"agg.denominator"}, judged32(t, "preference/sft_loss", b, &convention.Set{}).Case.Unknown)
	}
}

// pairs draws a batch of preference pairs.
func pairs(seed uint64) *trainer {
	tr := newTrainer(seed)
	tr.b.Meta.Algorithm = "dpo"
	level := -50 * tr.r.Float64()
	for _, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"} {
		tr.perRow(name, func(int) float64 { return level + 5*tr.r.NormFloat64() })
	}
	return tr
}

func TestDPOLossOfAnotherImplementation(t *testing.T) {
	log := ratioLog{}
	for _, kind := range []string{"sigmoid", "hinge", "ipo"} {
		for _, smoothing := range []float64{0, 0.1} {
			for seed := range cases(300) {
				tr := pairs(uint64(seed))
				b := tr.b
				c, r, rc, rr := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("ref_chosen"), b.Row("ref_rejected")
				loss := make([]float64, len(b.Files))
				for f, file := range b.Files {
					var terms []float32
					for i := file.Lo; i < file.Hi; i++ {
						h := (float32(c[i]) - float32(rc[i])) - (float32(r[i]) - float32(rr[i]))
						if seed%2 == 0 {
							h = (float32(c[i]) - float32(r[i])) - (float32(rc[i]) - float32(rr[i]))
						}
						x := .1 * h
						switch kind {
						case "sigmoid":
							e := float32(smoothing)
							terms = append(terms, (1-e)*tr.softplus(-x)+e*tr.softplus(x))
						case "hinge":
							terms = append(terms, max(0, 1-x))
						case "ipo":
							d := h - 1/(2*float32(.1))
							terms = append(terms, d*d)
						}
					}
					loss[f] = float64(sum32(terms) / float32(len(terms)))
				}
				tr.perFile("loss", loss)
				set := options(t, "dpo.loss="+kind, "dpo.beta=0.1", "dpo.label_smoothing="+short(smoothing))
				o := judged32(t, "preference/dpo_loss", b, set)
				log.pass(t, kind, o, seed)
				planted(t, "preference/dpo_loss", "loss", b, set, 0)
				if kind == "ipo" {
					require.NotContains(t, o.Case.Read, "dpo.label_smoothing")
				}
			}
		}
	}
	log.report(t)
}

func (t *trainer) softplus(x float32) float32 {
	return max(x, 0) + float32(math.Log1p(float64(t.exp32(-max(x, -x)))))
}

func TestDPOLossWithChosenAndRejectedSwapped(t *testing.T) {
	tr := pairs(4)
	b := tr.b
	tr.perFile("loss", make([]float64, len(b.Files)))
	set := options(t, "dpo.loss=sigmoid", "dpo.beta=0.1", "dpo.label_smoothing=0")
	for f, w := range judged32(t, "preference/dpo_loss", b, set).Pred.Want {
		b.PerFile("loss")[f] = round32(w)
	}
	require.Equal(t, check.Pass, judged32(t, "preference/dpo_loss", b, set).Verdict)
	swapped := b.With("logp_chosen", slices.Clone(b.Row("logp_rejected"))).With("logp_rejected", slices.Clone(b.Row("logp_chosen")))
	require.Equal(t, check.Fail, judged32(t, "preference/dpo_loss", swapped, set).Verdict)
	o := judged32(t, "preference/dpo_loss", b.Without("ref_chosen"), set)
	require.Equal(t, []string{"ref_chosen"}, o.Case.Absent)
}

func TestLossChecksOfAnEmptyGrid(t *testing.T) {
	b := &dump.Batch{Rows: 2, Origin: []dump.Origin{{}, {Row: 1}}, Files: []dump.FileInfo{{Hi: 2}}, Tensors: map[string]*dump.Tensor{},
		Meta: dump.Meta{WorldSize: 1, MicroBatches: 1, DLogpScale: 1, ScalarsScope: "optimizer_step", Framework: "trl"}}
	tr := &trainer{b: b}
	for _, name := range []string{"logp_new", "logp_old", "logp_ref", "logp_gen", "advantages", "kl", "entropy", "token_loss", "is_weights", "dlogp", "values", "values_new", "returns", "dvalues"} {
		tr.put(name, []float64{})
	}
	for _, name := range []string{"loss", "pg_loss", "kl_loss", "value_loss", "entropy_loss"} {
		tr.perFile(name, []float64{0})
	}
	tr.log("kl", func(int) float64 { return 0 })
	tr.log("clip_ratio/low_mean", func(int) float64 { return 0 })
	tr.log("clip_ratio/high_max", func(int) float64 { return 0 })
	for _, level := range []string{"token", "seq_mean"} {
		f := families()[2]
		f.level = level
		set := reduction{kind: "token", where: "micro"}.set(t, f.set(t))
		set, _ = set.Over(options(t, "value.factor=0.5", "value.clip=0.2", "value.mask=p1"))
		for _, ch := range stage.All() {
			switch ch.Stage {
			case convention.Ratio, convention.TokenLoss, convention.Aggregate, convention.Gradient, convention.Scalars:
				require.NotPanics(t, func() { stage.Judge(ch, b, set) }, ch.ID)
			}
		}
	}
}
