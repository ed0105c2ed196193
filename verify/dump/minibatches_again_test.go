package dump

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// wholeGroups are four steps of one token a row: two rollouts of two steps with two whole groups each, or one in two epochs. Their advantages are the scores less
// the group's mean, by the standard deviation over the rollout.
func wholeGroups(t *testing.T, again bool, bug func(adv, scores []float64) []float64) Source {
	const group, groups, spans, rollouts = 4, 4, 2, 2
	rng := rand.New(rand.NewPCG(3, 9))
	dir, step := t.TempDir(), 0
	for rollout := range rollouts {
		var ids, samples, scores, adv []float64
		for r := range groups * group {
			ids, samples, scores = append(ids, float64(r/group)), append(samples, float64(r+100*rollout)), append(scores, float64(rng.IntN(9))/2)
		}
		var sum, square float64
		for _, x := range scores {
			sum, square = sum+x, square+x*x
		}
		n := float64(len(scores))
		std := math.Sqrt((square - sum*sum/n) / (n - 1))
		for r, x := range scores {
			mean := 0.0
			for _, y := range scores[r/group*group : r/group*group+group] {
				mean += y / group
			}
			adv = append(adv, (x-mean)/(std+1e-4))
		}
		adv = bug(adv, scores)
		for range map[bool]int{true: rollouts, false: 1}[again] { // epochs
			for lo := 0; lo < len(ids); lo += len(ids) / spans {
				step++
				rows := len(ids) / spans
				tensors := []*dumpfile.Tensor{dumpfile.NewMask("response_mask", rows, 1, slices.Repeat([]bool{true}, rows))}
				for name, x := range map[string][]float64{"group_id": ids, "sample_id": samples, "scores": scores, "advantages": adv} {
					kind := format.F64
					if strings.HasSuffix(name, "_id") {
						kind = format.I64
					}
					tensors = append(tensors, &dumpfile.Tensor{Name: name, Width: 1, Shape: []int{rows}, Data: x[lo : lo+rows], Type: kind})
				}
				for name, x := range map[string]float64{"logp_new": -1 - float64(lo)/1000, "logp_old": -1} {
					tensors = append(tensors, &dumpfile.Tensor{Name: name, Width: 1, Shape: []int{rows, 1}, Data: slices.Repeat([]float64{x}, rows), Type: format.F64})
				}
				require.NoError(t, dumpfile.WriteFile(filepath.Join(dir, fmt.Sprintf("step_%d.safetensors", step)), dumpfile.Meta{Step: step, DLogpScale: 1}, tensors...))
			}
		}
		if again {
			break
		}
	}
	run, err := dumpfile.Open(t.Context(), []string{dir})
	require.NoError(t, err)
	return run
}

func right(adv, _ []float64) []float64 { return adv }

// Steps whose groups are whole show neither a group that is cut nor a mean of 0: rows that come again do, and updates whose log-probs did not move.
func TestStepsOfARolloutThatOtherNumbersShow(t *testing.T) {
	n, err := rowsComeAgain(t.Context(), wholeGroups(t, true, right), maxSpan)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = rowsComeAgain(t.Context(), wholeGroups(t, false, right), maxSpan)
	require.NoError(t, err)
	require.Zero(t, n)
	b, err := wholeGroups(t, false, right).Batch(t.Context(), 1)
	require.NoError(t, err)
	twin := *b
	twin.Meta.Step++
	n, err = rowsComeAgain(t.Context(), Batches{b, &twin}, maxSpan)
	require.NoError(t, err)
	require.Equal(t, 1, n, "every step has all rows")
	n, err = firstUpdates(t.Context(), wholeGroups(t, false, right))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	var moved Batches
	for _, step := range []int{1, 2, 3, 4} {
		b, err := wholeGroups(t, false, right).Batch(t.Context(), step)
		require.NoError(t, err)
		moved = append(moved, b)
	}
	moved[2].Token("logp_new")[1] -= 1e-3
	n, err = firstUpdates(t.Context(), moved)
	require.NoError(t, err)
	require.Equal(t, 1, n, "the second rollout has moved")
}

// What is normalised over a rollout is of no configuration in its steps alone, and neither is a bug of one of its groups.
func TestAdvantagesOfARolloutOfWholeGroups(t *testing.T) {
	raw := func(adv, scores []float64) []float64 { return append(adv[:12], scores[12:]...) }
	verdict := func(again bool, bug func(adv, scores []float64) []float64) check.Result {
		r, err := Judge(t.Context(), wholeGroups(t, again, bug), Options{Brief: true})
		require.NoError(t, err)
		return r.Results[slices.IndexFunc(r.Results, func(res check.Result) bool { return res.Check == "advantage/group" })]
	}
	res := verdict(true, right)
	require.Equal(t, check.Pass, res.Verdict, res.Reason)
	res = verdict(false, raw)
	require.Equal(t, check.Fail, res.Verdict, res.Reason)
	require.Equal(t, "ADV-GROUP-LEFT-OUT", res.Explanations[0].Fault)
}

// A spread that is fitted to every group on one base is kept until a base shows what it is.
func TestASpreadThatABaseShows(t *testing.T) {
	r, err := Judge(t.Context(), wholeGroups(t, true, func(adv, scores []float64) []float64 {
		var sum, square float64
		for _, x := range scores {
			sum, square = sum+x, square+x*x
		}
		n := float64(len(scores))
		std, rms := math.Sqrt((square-sum*sum/n)/(n-1)), math.Sqrt(square/n)
		for r := range adv {
			adv[r] *= (std + 1e-4) / (rms + 1e-4)
		}
		return adv
	}), Options{Brief: true})
	require.NoError(t, err)
	res := r.Results[slices.IndexFunc(r.Results, func(res check.Result) bool { return res.Check == "advantage/group" })]
	require.Equal(t, check.Fail, res.Verdict, res.Reason)
	require.Equal(t, "ADV-SPREAD", res.Explanations[0].Fault)
	require.Contains(t, res.Explanations[0].Title, "root mean square")
}

// A profile's own values are no bases enough: what it can be configured to is one, too.
func TestConfiguredBasesOfAdvantages(t *testing.T) {
	turned := func(adv, _ []float64) []float64 { return append(adv[8:], adv[:8]...) }
	s, _, err := judge(t.Context(), wholeGroups(t, false, turned), Options{}, nil, 2, "", 0)
	require.NoError(t, err)
	tr := s.tracks[slices.IndexFunc(s.tracks, func(t *track) bool { return t.check.ID == "advantage/group" })]
	u, err := s.unit(t.Context(), tr, 1)
	require.NoError(t, err)
	list := tr.configured(nil, u, s, func(string) bool { return true })
	require.True(t, slices.ContainsFunc(list, func(o *stage.Outcome) bool {
		is := func(option, value string) bool { return o.Case.Set.Value(option).String() == value }
		return is("adv.scale", "batch_std") && is("adv.std_of", "rewards") && is("adv.eps", "1e-4") // TRL, scale_rewards="batch"
	}))
	require.Empty(t, tr.configured(nil, u, s, func(string) bool { return false }), "what is declared stands")
	for _, form := range [][2]string{{"loo", "none"}, {"mean", "none"}, {"mean", "group_std"}, {"mean", "batch_std"}} {
		require.True(t, slices.ContainsFunc(tr.plain(u, s), func(o *stage.Outcome) bool {
			c := o.Case.Set
			return c.Value("adv.center").String() == form[0] && c.Value("adv.scale").String() == form[1] && c.Value("kl.place").String() == "none"
		}), form)
	}
}
