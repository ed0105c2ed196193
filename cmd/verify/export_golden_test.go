package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/rl"
)

// -rewrite stores what the reference gives in the exported pytest file.
var rewrite = flag.Bool("rewrite", false, "write the golden vectors of export/test_ppo_golden.py anew")

// tutorialGolden is the JSON text in the exported pytest file. Lists are rows; a "want" holds what the reference gives.
type tutorialGolden struct {
	Policy struct {
		New  [][]float64 `json:"log_probs_new"`
		Old  [][]float64 `json:"log_probs_old"`
		Adv  [][]float64 `json:"advantages"`
		Mask [][]int     `json:"response_mask"`
		Clip float64     `json:"clip_ratio"`
		Want policyWant  `json:"want"`
	} `json:"policy"`
	Value struct {
		New  [][]float64 `json:"values_new"`
		Old  [][]float64 `json:"values_old"`
		Ret  [][]float64 `json:"returns"`
		Mask [][]int     `json:"response_mask"`
		Clip float64     `json:"clip_range_value"`
		Want valueWant   `json:"want"`
	} `json:"value"`
	Entropy struct {
		Logits [][][]float64 `json:"logits_new"`
		Mask   [][]int       `json:"response_mask"`
		Want   entropyWant   `json:"want"`
	} `json:"entropy"`
	GAE struct {
		Rewards []float64   `json:"final_rewards"`
		KL      [][]float64 `json:"kl_penalties"`
		Values  [][]float64 `json:"values"`
		Mask    [][]int     `json:"response_mask"`
		Gamma   float64     `json:"gamma"`
		Lambda  float64     `json:"lam"`
		Want    gaeWant     `json:"want"`
	} `json:"gae"`
	Update tutorialUpdate `json:"update"`
}

type policyWant struct {
	Loss     float64     `json:"loss"`
	ClipFrac float64     `json:"clip_frac"`
	KL       float64     `json:"approx_kl"`
	Grad     [][]float64 `json:"grad"`
}

type valueWant struct {
	Loss     float64     `json:"loss"`
	ClipFrac float64     `json:"clip_frac"`
	Grad     [][]float64 `json:"grad"`
}

type entropyWant struct {
	Loss float64       `json:"loss"`
	Grad [][][]float64 `json:"grad"`
}

type gaeWant struct {
	Advantages [][]float64 `json:"advantages"`
	Returns    [][]float64 `json:"returns"`
}

// tutorialUpdate is the buffer of one epoch and an actor whose logits w[id] and values u[id] depend on the last token only.
type tutorialUpdate struct {
	W         [][]float64 `json:"w"`
	U         []float64   `json:"u"`
	Prompt    [][]int     `json:"prompt_ids"`
	Response  [][]int     `json:"response_ids"`
	Mask      [][]int     `json:"response_mask"`
	Logp      [][]float64 `json:"logprobs"`
	Ref       [][]float64 `json:"ref_logprobs"`
	Values    [][]float64 `json:"values"`
	Rewards   []float64   `json:"rewards"`
	Clip      float64     `json:"clip_ratio"`
	ClipValue float64     `json:"clip_range_value"`
	VF        float64     `json:"vf_coeff"`
	Entropy   float64     `json:"entropy_coeff"`
	KL        float64     `json:"kl_coeff"`
	Gamma     float64     `json:"gamma"`
	Lambda    float64     `json:"lam"`
	Want      updateWant  `json:"want"`
}

type updateWant struct {
	updateResult
	GradNorm float64                 `json:"grad_norm"`
	Mistakes map[string]updateResult `json:"mistakes"` // what goes wrong → what the tests then see
}

type updateResult struct {
	Loss map[string]float64 `json:"loss"`
	W    [][]float64        `json:"w"`
	U    []float64          `json:"u"`
}

// fill computes every want with the reference.
func (g *tutorialGolden) fill(t *testing.T) {
	p := &g.Policy
	rows, cols := len(p.Mask), len(p.Mask[0])
	policy, err := rl.ComputePolicyLoss(concat(p.New), concat(p.Old), concat(p.Adv), boolMask(p.Mask), rows, cols, p.Clip)
	require.NoError(t, err)
	p.Want = policyWant{policy.Loss, policy.ClipFrac, policy.ApproxKL, fold(policy.DLogp, cols)}

	v := &g.Value
	rows, cols = len(v.Mask), len(v.Mask[0])
	value, err := rl.ComputeValueLoss(concat(v.New), concat(v.Old), concat(v.Ret), boolMask(v.Mask), rows, cols, v.Clip)
	require.NoError(t, err)
	v.Want = valueWant{value.Loss, value.ClipFrac, fold(value.DValue, cols)}

	e := &g.Entropy
	rows, cols = len(e.Mask), len(e.Mask[0])
	vocab := len(e.Logits[0][0])
	var logits []float64
	for _, row := range e.Logits {
		logits = append(logits, concat(row)...)
	}
	loss, d, err := rl.ComputeEntropyLoss(logits, boolMask(e.Mask), rows, cols, vocab)
	require.NoError(t, err)
	e.Want = entropyWant{Loss: loss}
	for i := range rows {
		e.Want.Grad = append(e.Want.Grad, fold(d[i*cols*vocab:(i+1)*cols*vocab], vocab))
	}

	a := &g.GAE
	rows, cols = len(a.Mask), len(a.Mask[0])
	mask := boolMask(a.Mask)
	adv, ret, err := rl.ComputeGAEAdvantages(a.Rewards, concat(a.KL), concat(a.Values), mask, rows, cols, a.Gamma, a.Lambda)
	require.NoError(t, err)
	a.Want = gaeWant{fold(masked(adv, mask), cols), fold(masked(ret, mask), cols)}

	u := &g.Update
	right := u.epoch(t, 0, 1)
	var norm float64
	for _, x := range append(concat(right.W), right.U...) {
		norm += float64(x * x)
	}
	u.Want = updateWant{updateResult: right, GradNorm: math.Sqrt(norm), Mistakes: map[string]updateResult{
		"logits and values are sliced one token late: [prompt_len : prompt_len + resp_len]": u.epoch(t, 1, 1),
		"the entropy loss is subtracted: it is minus the entropy already":                   u.epoch(t, 0, -1),
		"the entropy loss is missing": u.epoch(t, 0, 0),
	}}
}

// epoch returns what one epoch of micro-batches of one row each gives, in one optimiser step: the mean losses and the
// gradients of w and u. late shifts the slice of logits and values, sign multiplies entropy_coeff; 0 and 1 are right.
func (u *tutorialUpdate) epoch(t *testing.T, late int, sign float64) updateResult {
	rows, cols, vocab, prompt := len(u.Mask), len(u.Mask[0]), len(u.U), len(u.Prompt[0])
	mask, old := boolMask(u.Mask), concat(u.Logp)
	penalty := make([]float64, rows*cols)
	for i, ref := range concat(u.Ref) {
		penalty[i] = u.KL * (old[i] - ref)
	}
	adv, ret, err := rl.ComputeGAEAdvantages(u.Rewards, penalty, concat(u.Values), mask, rows, cols, u.Gamma, u.Lambda)
	require.NoError(t, err)
	var micro []rl.UpdateBatch
	var logits [][]float64
	state := func(i, c int) int { // the token after which token c of the response is drawn
		ids := append(append([]int{}, u.Prompt[i]...), u.Response[i]...)
		return ids[min(prompt-1+c+late, len(ids)-1)]
	}
	for i := range rows {
		var z, value []float64
		for c := range cols {
			z, value = append(z, u.W[state(i, c)]...), append(value, u.U[state(i, c)])
		}
		lo, hi := i*cols, (i+1)*cols
		logits = append(logits, z)
		micro = append(micro, rl.UpdateBatch{Rows: 1, Cols: cols, LogpNew: rl.LogProbs(nil, z, u.Response[i], vocab, rl.LogProbOptions{}), LogpOld: old[lo:hi],
			ValuesNew: value, ValuesOld: concat(u.Values)[lo:hi], Returns: ret[lo:hi], Advantages: adv[lo:hi], Entropy: rl.Entropy(nil, z, vocab, rl.EntropyOptions{}), Mask: mask[lo:hi]})
	}
	e, err := rl.RunPPOUpdateEpoch(micro, rl.UpdateOptions{ClipRatio: u.Clip, ClipRangeValue: u.ClipValue, VFCoeff: u.VF, EntropyCoeff: sign * u.Entropy, Accumulation: rows})
	require.NoError(t, err)
	require.Equal(t, []rl.UpdateStep{{From: 0, To: rows, Divisor: rows}}, e.Steps)
	out := updateResult{Loss: map[string]float64{}, W: fold(make([]float64, vocab*vocab), vocab), U: make([]float64, vocab)}
	for _, m := range e.Metrics(nil) {
		if name, ok := strings.CutPrefix(m.Name, "loss/"); ok && name != "total" {
			out.Loss[name] = m.Value
		}
	}
	for i, m := range e.Micro {
		d := rl.LogProbsBackward(nil, m.DLogp, logits[i], u.Response[i], vocab, rl.LogProbOptions{})
		rl.EntropyBackward(d, m.DEntropy, logits[i], vocab, rl.EntropyOptions{})
		for c := range cols {
			s := state(i, c)
			for j := range vocab {
				out.W[s][j] += d[c*vocab+j]
			}
			out.U[s] += m.DValue[c]
		}
	}
	return out
}

func concat(rows [][]float64) []float64 {
	var x []float64
	for _, row := range rows {
		x = append(x, row...)
	}
	return x
}

func fold(x []float64, cols int) [][]float64 {
	var rows [][]float64
	for i := 0; i < len(x); i += cols {
		rows = append(rows, x[i:i+cols])
	}
	return rows
}

func boolMask(rows [][]int) []bool {
	var m []bool
	for _, row := range rows {
		for _, v := range row {
			m = append(m, v != 0)
		}
	}
	return m
}

func masked(x []float64, mask []bool) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		if mask[i] {
			y[i] = x[i]
		}
	}
	return y
}

const goldenFile = "export/test_ppo_golden.py"

// The numbers in the exported pytest file are those of the reference: what is embedded cannot rot.
func TestExportedVectors(t *testing.T) {
	data, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	text := string(data)
	const open, end = "GOLDEN = json.loads(\"\"\"", "\"\"\")"
	head, rest, ok := strings.Cut(text, open)
	require.True(t, ok)
	stored, tail, ok := strings.Cut(rest, end)
	require.True(t, ok)
	var g tutorialGolden
	require.NoError(t, json.Unmarshal([]byte(stored), &g))
	var before map[string]any
	require.NoError(t, json.Unmarshal([]byte(stored), &before))
	g.fill(t)
	fresh, err := json.Marshal(g)
	require.NoError(t, err)
	if *rewrite {
		require.NoError(t, os.WriteFile(goldenFile, []byte(head+open+layout(fresh)+end+tail), 0o666))
		return
	}
	var after map[string]any
	require.NoError(t, json.Unmarshal(fresh, &after))
	require.Equal(t, 5, len(after))
	require.Greater(t, closeJSON(t, "", before, after), 200, "the numbers that were compared")
	// a test that compares nothing cannot fail: one digit of one number is noticed
	before["policy"].(map[string]any)["want"].(map[string]any)["loss"] = g.Policy.Want.Loss * (1 + 1e-6)
	require.NotEmpty(t, differing("", before, after))
}

// closeJSON demands equal numbers, to a relative 1e-8, and returns how many there are.
func closeJSON(t *testing.T, place string, a, b any) int {
	t.Helper()
	require.Empty(t, differing(place, a, b), "go test ./cmd/verify -run TestExportedVectors -rewrite")
	var count func(x any) int
	count = func(x any) (n int) {
		switch x := x.(type) {
		case map[string]any:
			for _, v := range x {
				n += count(v)
			}
		case []any:
			for _, v := range x {
				n += count(v)
			}
		default:
			n = 1
		}
		return n
	}
	return count(b)
}

// differing returns the first place where two JSON values differ, "" if none.
func differing(place string, a, b any) string {
	switch b := b.(type) {
	case map[string]any:
		a, ok := a.(map[string]any)
		if !ok || len(a) != len(b) {
			return place + ": other keys"
		}
		for k, v := range b {
			if d := differing(place+"."+k, a[k], v); d != "" {
				return d
			}
		}
	case []any:
		a, ok := a.([]any)
		if !ok || len(a) != len(b) {
			return place + ": another length"
		}
		for i, v := range b {
			if d := differing(fmt.Sprintf("%s[%d]", place, i), a[i], v); d != "" {
				return d
			}
		}
	case float64:
		a, ok := a.(float64)
		if !ok || !(math.Abs(a-b) <= 1e-8*math.Abs(b)+1e-12) {
			return fmt.Sprintf("%s: stored %v, the reference gives %v", place, a, b)
		}
	default:
		return fmt.Sprintf("%s: %T", place, b)
	}
	return ""
}

var longNumber = regexp.MustCompile(`-?\d+\.\d{12,}(?:e-?\d+)?|-?\d+(?:\.\d+)?e-\d+`)

// layout breaks compact JSON before the keys of the outer two levels and rounds numbers to 12 digits.
func layout(compact []byte) string {
	var b strings.Builder
	depth, list := 0, 0
	for i, c := range compact {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		case '[':
			list++
		case ']':
			list--
		case '"':
			if prev := compact[max(i, 1)-1]; list == 0 && depth <= 2 && (prev == '{' || prev == ',') {
				b.WriteString("\n" + strings.Repeat(" ", depth-1))
			}
		}
		b.WriteByte(c)
		if c == ',' && list <= 1 {
			b.WriteByte(' ')
		}
	}
	return longNumber.ReplaceAllStringFunc(strings.ReplaceAll(b.String(), ", \n", ",\n"), func(s string) string {
		x, _ := strconv.ParseFloat(s, 64)
		return strconv.FormatFloat(x, 'g', 12, 64)
	})
}
