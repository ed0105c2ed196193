package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Advantages that are held in a range behind a division by the deviation of their group show both, also where the scores of some group are equal (OpenRLHF 0.11.2,
// group_norm and reward.clip_range).
func TestRangesBehindTheDeviation(t *testing.T) {
	for ddof := range 2 {
		score, id, adv := []float64{1, 0, 0, 0, 3, 1, 2, 0, 1, 1, 1, 1}, make([]float64, 12), make([]float64, 12)
		for g := 0; g < 12; g += 4 {
			m := momentsOf(score[g:g+4], nil, ddof, 0, 0)
			for r := g; r < g+4; r++ {
				id[r] = float64(g)
				adv[r] = float64(float32(min(max((score[r]-m.mean)/(math.Sqrt(m.v)+1e-9), -0.8), 0.8)))
			}
		}
		b := &dump.Batch{Rows: 12, Cols: 1, Mask: make([]bool, 12), Origin: make([]dump.Origin, 12), Files: []dump.FileInfo{{Name: "f", Hi: 12, Cols: 1}}, Tensors: map[string]*dump.Tensor{}}
		for r := range b.Mask {
			b.Mask[r] = true
		}
		for name, x := range map[string][]float64{"scores": score, "group_id": id, "advantages": adv} {
			b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{12}}
		}
		shown := Shown(Find("advantage/group"), b, &convention.Set{})
		require.NotEmpty(t, shown)
		got := texts(shown[0])
		require.Equal(t, []string{"group_std", "after_baseline", "-0.8,0.8"}, []string{got["adv.scale"], got["reward.clip"], got["reward.clip_range"]}, "%v", shown)
		require.Equal(t, map[int]string{0: "0", 1: "1"}[ddof], got["adv.ddof"])
	}
}

// withoutCritic is a batch of groups of four without values or rewards of tokens: one response of each has no end.
func withoutCritic(seed uint64) *dump.Batch {
	b := ppoBatch(seed, rewardsOf(0, 0), gaeOf(1, 1)).Without("values").Without("token_rewards").Without("returns").Without("raw")
	id := make([]float64, b.Rows)
	for r := range id {
		id[r] = float64(r / 4)
	}
	b.Tensors["group_id"] = &dump.Tensor{Name: "group_id", Data: id, Layout: dump.PerRow, Width: 1, Type: format.I64, Shape: []int{b.Rows}}
	return b
}

// unended are the rules for responses without an end by what they make of a score.
var unended = map[string]func(s float64) float64{
	"scale": func(s float64) float64 { return 0.35 * s }, "subtract": func(s float64) float64 { return s - 0.35 }, "replace": func(float64) float64 { return 0.35 },
}

// afterRule are the scores of a batch under a rule for the responses without an end, less the mean of their group.
func afterRule(b *dump.Batch, of func(s float64) float64, scaled bool) []float64 {
	score := slices.Clone(b.Row("scores"))
	for r := 3; r < b.Rows; r += 4 {
		score[r] = of(score[r])
	}
	left := make([]float64, b.Rows)
	for g := 0; g < b.Rows; g += 4 {
		m := momentsOf(score[g:g+4], nil, 1, 0, 0)
		for r := g; r < g+4; r++ {
			if left[r] = score[r] - m.mean; scaled {
				left[r] /= math.Sqrt(m.v)
			}
		}
	}
	return left
}

// Advantages less the mean of a group, whitened or not, show the rule for responses without an end.
func TestPenaltiesAreShownOfGroups(t *testing.T) {
	for rule, of := range unended {
		for _, whitened := range []bool{false, true} {
			b := withoutCritic(1)
			adv := make([]float64, len(b.Mask))
			left := afterRule(b, of, false)
			for i := range b.Tokens() {
				adv[i] = left[i/b.Cols]
			}
			if whitened {
				adv = white(b, adv, 0)
			}
			for i, x := range adv {
				adv[i] = float64(float32(x))
			}
			b.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Data: adv, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
			kind := map[bool]string{false: "group", true: "rfpp_baseline"}[whitened]
			require.True(t, slices.ContainsFunc(Shown(Find("advantage/group"), b, &convention.Set{}), func(list []Change) bool {
				got := texts(list)
				return got["eos.rule"] == rule && got["eos.penalty"] == "0.35" && got["adv.kind"] == kind
			}), "%s, whitened %v", rule, whitened)
		}
	}
}

// Returns of what a baseline leaves, less a KL, show that rule, the range that it is held in, and the whitening of the advantages with them.
func TestPenaltiesBelowABaselineAreShownOfReturns(t *testing.T) {
	for rule, of := range unended {
		for _, scaled := range []bool{false, true} {
			b := withoutCritic(2)
			left, kl, ret := afterRule(b, of, scaled), b.Token("kl"), make([]float64, len(b.Mask))
			hi := math.Floor(10*slices.Max(left)-0.5) / 10
			for row := range b.Rows {
				next := 0.0
				for i := (row+1)*b.Cols - 1; i >= row*b.Cols; i-- {
					if b.Mask[i] {
						if next -= 0.05 * kl[i]; i+1 == (row+1)*b.Cols || !b.Mask[i+1] {
							next += min(left[row], hi)
						}
						ret[i] = float64(float32(next))
					}
				}
			}
			adv := white(b, ret, 0)
			for name, x := range map[string][]float64{"returns": ret, "advantages": adv} {
				b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
			}
			require.True(t, slices.ContainsFunc(Shown(Find("advantage/return"), b, &convention.Set{}), func(list []Change) bool {
				got := texts(list)
				return got["eos.rule"] == rule && got["eos.penalty"] == "0.35" && strings.HasSuffix(got["reward.clip_range"], fmt.Sprintf(",%g", hi)) && got["kl.beta"] == "0.05" && got["adv.kind"] != "" &&
					got["adv.scale"] == map[bool]string{false: "none", true: "group_std"}[scaled]
			}), "%s, scaled %v", rule, scaled)
		}
	}
}
