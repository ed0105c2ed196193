package rl

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// workedLosses is the part of the worked batch of the conventions document that losses are about.
type workedLosses struct {
	Inputs struct{ Old, New, Ref, Val, VPred, Mask [][]float64 }
	KL     struct {
		LogP, Ref    []float64
		Verl         map[string][]float64
		OpenRLHF     map[string][]float64
		Nemo         map[string][]float64 `json:"nemo_default"`
		TRL          map[string][]float64
		OpenInstruct [][]float64 `json:"open_instruct[0..3]"`
	}
	Loss struct {
		PerToken  [][]float64        `json:"per_token"`
		Agg       map[string]float64 `json:"agg_mask"`
		AggRow2   map[string]float64 `json:"agg_row2_fully_masked"`
		Micro     map[string]float64 `json:"microbatch_2x2"`
		Extreme   map[string]json.RawMessage
		GSPOVerl  json.RawMessage `json:"gspo_verl"`
		GSPOOpen  json.RawMessage `json:"gspo_openrlhf"`
		GSPOTRL   json.RawMessage `json:"gspo_trl"`
		Value     map[string]float64
		Constants struct{ Advantages []float64 } `json:"inputs"`
	}
	KLGrad map[string]json.RawMessage `json:"kl_grad"`
}

func loadWorkedLosses(t *testing.T) *workedLosses {
	t.Helper()
	text, err := os.ReadFile("testdata/conventions.json")
	require.NoError(t, err)
	w := new(workedLosses)
	require.NoError(t, json.Unmarshal(text, w))
	require.Len(t, w.Inputs.New, 4)
	return w
}

// lossGrad decodes [loss, gradient].
func lossGrad(t *testing.T, text json.RawMessage) (loss float64, grad []float64) {
	t.Helper()
	var parts []json.RawMessage
	require.NoError(t, json.Unmarshal(text, &parts))
	require.Len(t, parts, 2)
	require.NoError(t, json.Unmarshal(parts[0], &loss))
	var rows [][]float64
	require.NoError(t, json.Unmarshal(parts[1], &rows))
	return loss, flat(rows)
}

// batch is the worked batch with one advantage per row.
func (w *workedLosses) batch() PolicyBatch {
	b := PolicyBatch{Rows: 4, Cols: 6, LogProbs: flat(w.Inputs.New), Old: flat(w.Inputs.Old), Ref: flat(w.Inputs.Ref), Mask: truth(w.Inputs.Mask)}
	for _, a := range w.Loss.Constants.Advantages {
		b.Adv = append(b.Adv, a, a, a, a, a, a)
	}
	return b
}

func TestWorkedKL(t *testing.T) {
	w := loadWorkedLosses(t)
	kl := func(o KLOptions) []float64 {
		v, _ := KL(nil, nil, w.KL.LogP, w.KL.Ref, w.KL.LogP, o)
		return v
	}
	kinds := map[string]KLKind{"k1": KLK1, "k2": KLK2, "k3": KLK3, "abs": KLAbs}
	n := 0
	for name, want := range w.KL.Verl {
		require.NoError(t, off(kl(KLOptions{Kind: kinds[name], ClampIn: 20, ClampOut: 10}), want, 1e-12), name)
		n++
	}
	for name, want := range w.KL.Nemo {
		require.NoError(t, off(kl(KLOptions{Kind: kinds[name], ClampIn: 20, ClampOut: 10, ClampAll: true}), want, 1e-12), name)
		n++
	}
	for name, want := range w.KL.OpenRLHF { // computed in float32
		require.NoError(t, off(kl(KLOptions{Kind: kinds[name], ClampIn: 10, ClampInBelow: true, ClampOut: 10, ClampAll: true}), want, 2e-7), name)
		n++
	}
	for name, want := range map[string]KLKind{"k1(ppo)": KLK1, "k3(ppo,grpo)": KLK3} {
		require.NoError(t, off(kl(KLOptions{Kind: want}), w.KL.TRL[name], 1e-2), name) // 3931334297114.042 has an ulp of 5e-4
		require.NoError(t, off(kl(KLOptions{Kind: want})[:4], w.KL.TRL[name][:4], 1e-12), name)
		n++
	}
	for i, want := range w.KL.OpenInstruct {
		kind, err := KLZero.Kind(i)
		require.NoError(t, err)
		got := kl(KLOptions{Kind: kind, ClampIn: 40, ClampAll: true})
		require.NoError(t, off(got, want, 1e-2), i)
		require.NoError(t, off(got[:4], want[:4], 1e-12), i)
		n++
	}
	require.Equal(t, 16, n)
	require.Error(t, off(kl(KLOptions{Kind: KLK1, ClampIn: 20, ClampOut: 10, ClampAll: true}), w.KL.Verl["k1"], 1e-12), "a clamp on k1")
	require.Error(t, off(kl(KLOptions{Kind: KLK3, ClampIn: 20}), w.KL.Verl["k3"], 1e-12), "no output clamp")
}

func TestWorkedKLGrad(t *testing.T) {
	w := loadWorkedLosses(t)
	var lp, ref []float64
	require.NoError(t, json.Unmarshal(w.KLGrad["logp"], &lp))
	require.NoError(t, json.Unmarshal(w.KLGrad["ref"], &ref))
	verl := func(k KLKind) KLOptions { return KLOptions{Kind: k, ClampIn: 20, ClampOut: 10} }
	nemo := func(k KLKind, g KLGrad) KLOptions {
		return KLOptions{Kind: k, Grad: g, ClampIn: 20, ClampOut: 10, ClampAll: true}
	}
	cases := map[string]KLOptions{
		"verl k1": verl(KLK1), "verl k2": verl(KLK2), "verl k3": verl(KLK3), "verl abs": verl(KLAbs),
		"nemo score-fn k1": nemo(KLK1, KLScoreFunction), "nemo old(detached w=1) k1": nemo(KLK1, KLNaive),
		"nemo score-fn k2": nemo(KLK2, KLScoreFunction), "nemo old(detached w=1) k2": nemo(KLK2, KLNaive),
		"nemo score-fn k3": nemo(KLK3, KLScoreFunction), "nemo old(detached w=1) k3": nemo(KLK3, KLNaive),
		"trl k3*coef_1 (use_bias_correction_kl, on-policy)": {Kind: KLK3, Grad: KLISCorrected},
	}
	require.Len(t, w.KLGrad, len(cases)+3) // logp, ref and k3+, which raised at that commit
	for name, o := range cases {
		var want struct{ Value, Grad []float64 }
		require.NoError(t, json.Unmarshal(w.KLGrad[name], &want))
		value, grad := KL(nil, nil, lp, ref, lp, o)
		require.NoError(t, off(value, want.Value, 1e-12), name)
		require.NoError(t, off(grad, want.Grad, 1e-12), name)
		o.Grad = (o.Grad + 1) % KLStraightThroughK2
		if _, wrong := KL(nil, nil, lp, ref, lp, o); name != "trl k3*coef_1 (use_bias_correction_kl, on-policy)" {
			require.Error(t, off(wrong, want.Grad, 1e-12), name)
		}
	}
}

// workedAggs are the modes of the batch.
var workedAggs = map[string]AggOptions{
	"verl:token-mean":              {},
	"verl:seq-mean-token-sum":      {Kind: AggSeqMeanTokenSum},
	"verl:seq-mean-token-mean":     {Kind: AggSeqMeanTokenMean, LenEps: 1e-8},
	"verl:seq-mean-token-sum-norm": {Kind: AggSeqSumConst},
	"openrlhf:token":               {},
	"openrlhf:seq":                 {Kind: AggSeqMeanTokenMean, LenEps: 1e-8},
	"trl:grpo":                     {Kind: AggSeqMeanTokenMean, EmptyRows: AggCounted},
	"trl:bnpo":                     {},
	"trl:dr_grpo(Lmax=6)":          {Kind: AggSeqSumConst, DivBatch: true, Length: 6, EmptyRows: AggCounted},
	"trl:luspo(token ratio)":       {Kind: AggLUSPO},
	"nemo:token":                   {Eps: 1e-8},
	"nemo:seq":                     {Kind: AggSeqMeanTokenMean, Eps: 1e-8, LenEps: 1e-8, EmptyRows: AggCounted},
	"open_instruct:token":          {},
}

func TestWorkedLoss(t *testing.T) {
	w := loadWorkedLosses(t)
	b := w.batch()
	o := PolicyOptions{Clip: ClipOptions{Low: 0.2, High: 0.28}}
	var r PolicyResult
	require.NoError(t, Policy(&r, b, o))
	require.NoError(t, off(r.Token, flat(w.Loss.PerToken), 1e-12))
	require.Len(t, w.Loss.Agg, len(workedAggs))
	require.Len(t, w.Loss.AggRow2, len(workedAggs))
	for name, agg := range workedAggs {
		o.Agg = agg
		require.NoError(t, Policy(&r, b, o))
		require.NoError(t, off([]float64{r.Loss}, []float64{w.Loss.Agg[name]}, 1e-12), name)
		empty := b
		empty.Mask = append([]bool{}, b.Mask...)
		clear(empty.Mask[12:18])
		require.NoError(t, Policy(&r, empty, o))
		require.NoError(t, off([]float64{r.Loss}, []float64{w.Loss.AggRow2[name]}, 1e-12), name)
	}
	// The comparator rejects the neighbouring option.
	for name, fault := range map[string]AggOptions{"trl:grpo": {Kind: AggSeqMeanTokenMean}, "nemo:token": {}, "trl:luspo(token ratio)": {Kind: AggSeqMeanTokenSum},
		"trl:dr_grpo(Lmax=6)": {Kind: AggSeqSumConst}, "verl:seq-mean-token-sum": {Kind: AggSeqMeanTokenSum, EmptyRows: AggCounted}} {
		empty := append([]bool{}, b.Mask...)
		clear(empty[12:18])
		got, _, err := Aggregate(nil, flat(w.Loss.PerToken), empty, 4, 6, fault)
		require.NoError(t, err)
		require.Error(t, off([]float64{got}, []float64{w.Loss.AggRow2[name]}, 1e-12), name)
	}

	half := func(from int, agg AggOptions) float64 {
		l, _, err := Aggregate(nil, flat(w.Loss.PerToken)[from*6:from*6+12], b.Mask[from*6:from*6+12], 2, 6, agg)
		require.NoError(t, err)
		return l
	}
	micro := func(agg AggOptions) float64 { return half(0, agg) + half(2, agg) }
	got := []float64{micro(AggOptions{Steps: 2}), micro(AggOptions{Denominator: AggGlobal, Tokens: 17}),
		micro(AggOptions{Kind: AggSeqSumConst}), micro(AggOptions{Kind: AggSeqSumConst, Steps: 2})}
	want := []float64{w.Loss.Micro["token-mean averaged locally"], w.Loss.Micro["token-mean global denom"],
		w.Loss.Micro["seq-mean-token-sum-norm summed"], w.Loss.Micro["seq-mean-token-sum-norm averaged over 2 micro"]}
	require.NoError(t, off(got, want, 1e-12))
}

func TestWorkedGSPO(t *testing.T) {
	w := loadWorkedLosses(t)
	b := w.batch()
	clip := ClipOptions{Low: 0.2, High: 0.28}
	for name, c := range map[string]struct {
		want  json.RawMessage
		ratio RatioOptions
		agg   AggOptions
	}{
		"verl":     {w.Loss.GSPOVerl, RatioOptions{Level: RatioSeqMean, SeqLogMax: 10, PerToken: true}, AggOptions{Kind: AggSeqMeanTokenMean, LenEps: 1e-8}},
		"openrlhf": {w.Loss.GSPOOpen, RatioOptions{Level: RatioSeqMean, LenEps: 1e-8}, AggOptions{Kind: AggSeqMeanTokenMean, LenEps: 1e-8}},
		"trl":      {w.Loss.GSPOTRL, RatioOptions{Level: RatioSeqMean}, AggOptions{Kind: AggSeqMeanTokenMean, EmptyRows: AggCounted}},
	} {
		loss, grad := lossGrad(t, c.want)
		var r PolicyResult
		require.NoError(t, Policy(&r, b, PolicyOptions{Kind: LossGSPO, Ratio: c.ratio, Clip: clip, Agg: c.agg}))
		require.NoError(t, off([]float64{r.Loss}, []float64{loss}, 1e-9), name) // where len_eps enters differs by release
		require.NoError(t, off(r.DLogp, grad, 1e-9), name)
		// X: the token ratio is something else.
		require.NoError(t, Policy(&r, b, PolicyOptions{Clip: clip, Agg: c.agg}))
		require.Error(t, off(r.DLogp, grad, 1e-9), name)
	}
}

func TestWorkedExtreme(t *testing.T) {
	w := loadWorkedLosses(t)
	var d, adv [][]float64
	require.NoError(t, json.Unmarshal(w.Loss.Extreme["logratio"], &d))
	require.NoError(t, json.Unmarshal(w.Loss.Extreme["adv"], &adv))
	b := PolicyBatch{Rows: 1, Cols: 4, LogProbs: flat(d), Old: make([]float64, 4), Adv: flat(adv)}
	clip := ClipOptions{Low: 0.2, High: 0.2}
	dual, delta := clip, clip
	dual.Dual, delta.Delta = 3, 3
	clamp := RatioOptions{LogClamp: 20}
	for name, o := range map[string]PolicyOptions{
		"verl_vanilla c=3 eps=.2": {Ratio: clamp, Clip: dual},
		"openrlhf no dual":        {Ratio: clamp, Clip: clip},
		"openrlhf dual=3":         {Ratio: clamp, Clip: dual},
		"trl delta=None":          {Clip: clip},
		"trl delta=3":             {Clip: delta},
	} {
		loss, grad := lossGrad(t, w.Loss.Extreme[name])
		var r PolicyResult
		require.NoError(t, Policy(&r, b, o))
		scale := max(1, loss) // of 1.8e10
		require.NoError(t, off([]float64{r.Loss}, []float64{loss}, 1e-12*scale), name)
		require.NoError(t, off(r.DLogp, grad, 1e-12*scale), name)
	}
}

func TestWorkedValue(t *testing.T) {
	w := loadWorkedLosses(t)
	v, old := flat(w.Inputs.VPred), flat(w.Inputs.Val)
	returns := make([]float64, len(old))
	for i, x := range old {
		returns[i] = x + 0.3
	}
	mask := truth(w.Inputs.Mask)
	p1 := LengthMask(nil, mask, 4, 6, 1)
	loss := func(m []bool, o ValueOptions) []float64 {
		var r ValueResult
		require.NoError(t, ValueLoss(&r, v, old, returns, m, 4, 6, o))
		return []float64{r.Loss}
	}
	want := w.Loss.Value
	require.NoError(t, off(loss(mask, ValueOptions{Clip: .2}), []float64{want["verl c=.2"]}, 1e-12))
	require.NoError(t, off(loss(mask, ValueOptions{Clip: .2}), []float64{want["openrlhf c=.2"]}, 1e-12))
	require.NoError(t, off(loss(p1, ValueOptions{Clip: .2}), []float64{want["trl c=.2 (mask~p1)"]}, 1e-12))
	require.NoError(t, off(loss(mask, ValueOptions{Clip: .2, Factor: 1}), []float64{2 * want["verl c=.2"]}, 1e-12))
	require.Error(t, off(loss(mask, ValueOptions{}), []float64{want["verl c=.2"]}, 1e-12), "unclipped")
}
