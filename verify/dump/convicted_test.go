package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// A bug convicts where nothing is declared if no configuration makes its numbers right, and if its own bounds are narrow enough to judge them.
func TestWhatConvictsWithoutADeclaration(t *testing.T) {
	known := func(id string, verdict check.Verdict, casts bool) fault.Explanation {
		return fault.Explanation{Hypothesis: hypothesis(id), Outcome: &stage.Outcome{Verdict: verdict, Arithmetic: stage.Arithmetic{Casts: casts}}}
	}
	nothing := &convention.Set{}
	without := &stage.Outcome{Case: &stage.Case{Set: nothing, B: &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}, Rows: 1, Cols: 2, Mask: []bool{true, true}}}}
	lead := known("ADV-CENTER", check.Pass, false)
	lead.Lead = true
	for _, c := range []struct {
		name string
		bugs []fault.Explanation
		want bool
	}{
		{"of any configuration", []fault.Explanation{known("OLD-RECOMPUTED", check.Pass, false)}, true},
		{"in 16 bits, narrow enough", []fault.Explanation{known("OLD-RECOMPUTED", check.Pass, true)}, true},
		{"in 16 bits, too wide", []fault.Explanation{known("OLD-RECOMPUTED", check.Undetermined, true)}, false},
		{"against a declaration that is not there", []fault.Explanation{known("ADV-CENTER", check.Pass, false), known("KL-ABSENT", check.Pass, false)}, false},
		{"one that needs no declaration behind one that does", []fault.Explanation{known("ADV-CENTER", check.Pass, false), known("ADV-ROWS-ROLLED", check.Pass, false)}, true},
		{"leads, which are judged elsewhere", []fault.Explanation{lead}, true},
	} {
		require.Equal(t, c.want, (&track{check: stage.Find("advantage/group"), first: without, why: explanation{faults: c.bugs}}).convicted(), c.name)
	}
	weights := []fault.Explanation{known("IS-OLD-FOR-GEN", check.Pass, false)}
	require.False(t, (&track{check: stage.Find("gradient/dlogp"), first: without, why: explanation{faults: weights}}).convicted(), "nobody says that there are weights")
	tied := append([]fault.Explanation{known("OLD-IS-GEN", check.Pass, false)}, weights...)
	require.False(t, (&track{check: stage.Find("gradient/dlogp"), first: without, why: explanation{faults: tied}}).convicted(), "what has the numbers of a configuration")
	require.True(t, (&track{check: stage.Find("gradient/dlogp"), first: without, why: explanation{faults: tied[:1]}}).convicted())
	with := &stage.Outcome{Case: &stage.Case{Set: nothing, B: without.Case.B.With("is_weights", []float64{1, 1})}}
	require.True(t, (&track{check: stage.Find("gradient/dlogp"), first: with, why: explanation{faults: weights}}).convicted())
	ofRows := &stage.Outcome{Case: &stage.Case{Set: nothing, B: &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{"is_weights": {Data: []float64{1}, Layout: dumpfile.PerRow}}, Rows: 1, Cols: 2, Mask: []bool{true, true}}}}
	require.True(t, (&track{check: stage.Find("ratio/is_weights"), first: ofRows, why: explanation{faults: weights}}).convicted(), "one weight of every row")
	solved := known("KL-ABSENT", check.Pass, false)
	solved.Solved = true
	require.False(t, (&track{check: stage.Find("aggregate/loss"), first: without, why: explanation{faults: []fault.Explanation{solved}}}).convicted(), "nobody says that there is a KL")
	beta := &stage.Outcome{Case: &stage.Case{Set: nothing.With("kl.beta", convention.NumberValue(0.1), "--set"), B: without.Case.B}}
	require.True(t, (&track{check: stage.Find("aggregate/loss"), first: beta, why: explanation{faults: []fault.Explanation{solved}}}).convicted())
	ofBatch := known("ADV-ONE-GROUP", check.Pass, false)
	ofBatch.Solved = true
	require.False(t, (&track{check: stage.Find("advantage/group"), first: without, why: explanation{faults: []fault.Explanation{ofBatch}}}).convicted(), "REINFORCE has a baseline of the batch")
	drawn := known("LOSS-MASK-OTHER", check.Pass, false)
	of := *drawn.Hypothesis
	drawn.Hypothesis, of.Configured = &of, []string{"loss.kind"}
	both := []fault.Explanation{known("LOSS-MASK-NO-EOS", check.Pass, false), drawn}
	without.Case.Read = []string{"loss.kind"}
	require.False(t, (&track{check: stage.Find("aggregate/loss"), first: without, why: explanation{faults: both}}).convicted(), "clip_cov leaves such tokens out")
	kind, err := convention.Parse("loss.kind", "ppo")
	require.NoError(t, err)
	said := &stage.Outcome{Case: &stage.Case{Set: nothing.With("loss.kind", kind, "--set"), B: without.Case.B, Read: without.Case.Read}}
	require.True(t, (&track{check: stage.Find("aggregate/loss"), first: said, why: explanation{faults: both}}).convicted())
	twice := &stage.Outcome{Case: &stage.Case{Set: nothing, B: without.Case.B, Read: []string{"kl.beta"}}}
	require.False(t, (&track{check: stage.Find("aggregate/loss"), first: twice, why: explanation{faults: []fault.Explanation{known("KL-TWICE", check.Pass, false)}}}).convicted(), "twice what?")
	twice.Case.Read = []string{"agg.div_ga"}
	require.False(t, (&track{check: stage.Find("gradient/dlogp"), first: twice, why: explanation{faults: []fault.Explanation{known("AGG-GA-MISSING", check.Pass, false)}}}).convicted(), "a loss may be logged before it is divided")
	twice.Case.Read = []string{"reward.clip"}
	require.False(t, (&track{check: stage.Find("advantage/group"), first: twice, why: explanation{faults: []fault.Explanation{known("ADV-CLIPPED", check.Pass, false)}}}).convicted(), "rewards are clipped behind a baseline")
	behind := []fault.Explanation{known("LOSS-MASK-P1", check.Pass, false)}
	require.False(t, (&track{check: stage.Find("gae/returns"), first: without, why: explanation{faults: behind}}).convicted(), "the cell behind a response may hold a value")
	require.True(t, (&track{check: stage.Find("token_loss/policy"), first: without, why: explanation{faults: behind}}).convicted())
	padded, cells := []fault.Explanation{known("LOSS-MASK-PADS", check.Pass, false)}, []bool{true, true, false, false}
	for name, want := range map[string]bool{"advantages": false, "other": true} {
		b := &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}, Rows: 2, Cols: 2, Mask: cells}
		b = b.With(name, []float64{1, -1, 0, 0})
		constant := &stage.Outcome{Case: &stage.Case{Set: nothing, B: b}}
		require.Equal(t, want, (&track{check: stage.Find("aggregate/loss"), first: constant, why: explanation{faults: padded}}).convicted(), "a sum over padding that is 0, divided by the width: %s", name)
		require.True(t, (&track{check: stage.Find("advantage/group"), first: constant, why: explanation{faults: padded}}).convicted())
	}
	bonus := &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}, Rows: 2, Cols: 2, Mask: cells}
	bonus = bonus.With("token_loss", []float64{1, -1, 0, 0}).With("entropy", []float64{1, 2, 3, 3})
	held := &stage.Outcome{Case: &stage.Case{Set: nothing, B: bonus}}
	require.True(t, (&track{check: stage.Find("aggregate/entropy_loss"), first: held, why: explanation{faults: padded}}).convicted(), "padding holds entropies, if no losses")
	require.False(t, (&track{check: stage.Find("aggregate/loss"), first: held, why: explanation{faults: padded}}).convicted())
	logged := []fault.Explanation{known("LOSS-MASK-PADS", check.Pass, false), known("METRIC-APPROX-KL-PADS", check.Pass, false)}
	require.False(t, (&track{check: stage.Find("scalars/approx_kl"), first: without, why: explanation{faults: logged}}).convicted(), "a mean over padding, as TRL's PPO logs it")
	require.True(t, (&track{check: stage.Find("scalars/approx_kl"), first: without, why: explanation{faults: logged[:1]}}).convicted())
	wide := &track{check: stage.Find("aggregate/loss"), first: without, why: explanation{faults: []fault.Explanation{known("AGG-PAD-DENOMINATOR", check.Pass, false)}}}
	require.True(t, wide.overOneWidth(&session{overview: &overview{width: 16}}), "a constant that is the width of all files")
	require.False(t, wide.overOneWidth(&session{overview: &overview{width: -1}}), "files of several widths have no constant")
	wide.check = stage.Find("ratio/is_weights")
	require.False(t, wide.overOneWidth(&session{overview: &overview{width: 16}}))
}

// hypothesis is that of the catalogue: whether it is relative to a declaration is the registry's word, as it is for a run that is judged.
func hypothesis(id string) *fault.Hypothesis {
	if h := fault.Find(id); h != nil {
		return h
	}
	return &fault.Hypothesis{ID: id, Relative: bug.MustFind(id).Against != ""}
}

// A penalty of responses without EOS that nobody declares is not ignored where there is none, and 0 is no missing score beside a penalty of a profile's.
func TestPenaltiesThatNobodyDeclares(t *testing.T) {
	judge := func(id, rule, origin string) bool {
		v, err := convention.Parse("eos.rule", rule)
		require.NoError(t, err)
		o := &stage.Outcome{Case: &stage.Case{Set: (&convention.Set{}).With("eos.rule", v, origin), B: &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}, Rows: 1, Cols: 2, Mask: []bool{true, true}}}}
		e := fault.Explanation{Hypothesis: hypothesis(id), Outcome: &stage.Outcome{Verdict: check.Pass}}
		return (&track{check: stage.Find("advantage/group"), first: o, why: explanation{faults: []fault.Explanation{e}}}).convicted()
	}
	for _, origin := range []string{"search", "trl-ppo@1.12", ofNobody} {
		require.False(t, judge("EOS-PENALTY-IGNORED", "subtract", origin))
		require.Equal(t, origin == "search", judge("SCORE-ZERO-MISSING", "subtract", origin), origin)
	}
	require.True(t, judge("EOS-PENALTY-IGNORED", "subtract", "--set"))
	require.True(t, judge("SCORE-ZERO-MISSING", "none", "trl-ppo@1.12"))
}

// A reward that stands behind its token is lost at the end of a row, as that of a response without an end is by a penalty of 0 that nobody declares.
func TestLostScoresMayBeConfigured(t *testing.T) {
	set := &convention.Set{}
	for name, text := range map[string]string{"adv.kind": "gae", "gae.gamma": "1", "gae.lambda": "1", "gae.hole": "none", "kl.place": "none", "whiten.scope": "none", "returns.of": "gae", "returns.before_whiten": "true",
		"gae.lambda_policy": "none", "gae.truncated_bootstrap": "none", "gae.value_mask": "response", "rewards.whiten": "no", "reward.clip": "none", "score.index": "last_response"} {
		v, err := convention.Parse(name, text)
		require.NoError(t, err)
		set = set.With(name, v, "search")
	}
	token := func(x ...float64) *dumpfile.Tensor {
		return &dumpfile.Tensor{Data: x, Width: 1, Layout: dumpfile.PerToken, Shape: []int{2, 2}}
	}
	judge := func(set *convention.Set, returns ...float64) bool {
		b := &dumpfile.Batch{Rows: 2, Cols: 2, Mask: []bool{true, true, true, false}, Origin: make([]dumpfile.Origin, 2), Files: []dumpfile.FileInfo{{Hi: 2, Cols: 2}}}
		b.Tensors = map[string]*dumpfile.Tensor{"scores": {Data: []float64{2, 3}, Width: 1, Layout: dumpfile.PerRow, Shape: []int{2}}, "values": token(0, 0, 0, 0), "returns": token(returns...), "advantages": token(returns...)}
		c := stage.NewCase(b, set, 0)
		e := fault.Explanation{Hypothesis: hypothesis("GAE-REWARD-SHIFT"), Outcome: &stage.Outcome{Verdict: check.Pass}}
		return (&track{check: stage.Find("gae/advantage"), first: &stage.Outcome{Case: c}, why: explanation{faults: []fault.Explanation{e}}}).convicted()
	}
	none, err := convention.Parse("eos.rule", "none")
	require.NoError(t, err)
	free := set.With("eos.rule", none, "search")
	require.False(t, judge(free, 0, 0, 3, 0))
	require.True(t, judge(free, 1, 0, 3, 0), "a score of another number")
	require.True(t, judge(set.With("eos.rule", none, "--set"), 0, 0, 3, 0))
}

// Advantages that are normalised again are those of one function that is normalised and then summed (GDPO), unless it is declared how functions are.
func TestNormalisedTwiceMayBeConfigured(t *testing.T) {
	h := hypothesis("ADV-NORMALISED-TWICE")
	h.Relative = false
	bugs := explanation{faults: []fault.Explanation{{Hypothesis: h, Outcome: &stage.Outcome{Verdict: check.Pass}}}}
	b := &dumpfile.Batch{Tensors: map[string]*dumpfile.Tensor{}, Rows: 1, Cols: 2, Mask: []bool{true, true}}
	judged := func(id string, set *convention.Set) bool {
		return (&track{check: stage.Find(id), first: &stage.Outcome{Case: &stage.Case{Set: set, B: b}}, why: bugs}).convicted()
	}
	require.False(t, judged("advantage/group", &convention.Set{}))
	require.True(t, judged("advantage/return", &convention.Set{}))
	v, err := convention.Parse("adv.multi", "sum_then_normalize")
	require.NoError(t, err)
	require.True(t, judged("advantage/group", (&convention.Set{}).With("adv.multi", v, "--set")))
}

// A difference from an option convicts where that option is declared, whatever others are.
func TestDifferencesFromWhatNobodyDeclares(t *testing.T) {
	value := func(option, text string) convention.Value {
		v, err := convention.Parse(option, text)
		require.NoError(t, err)
		return v
	}
	set := (&convention.Set{}).With("loss.kind", value("loss.kind", "ppo"), "the dump").With("clip.low", value("clip.low", "0.2"), "the dump").With("clip.high", value("clip.high", "0.3"), "search")
	of := func(id string, set *convention.Set) bool {
		why := explanation{faults: []fault.Explanation{{Hypothesis: hypothesis(id), Outcome: &stage.Outcome{Verdict: check.Pass}}}}
		first := &stage.Outcome{Case: &stage.Case{Set: set, Read: []string{"loss.kind", "clip.low", "clip.high"}}}
		return (&track{check: stage.Find("token_loss/policy"), first: first, why: why}).unsaidAgainst()
	}
	require.True(t, of("CLIP-HIGH-AS-LOW", set))
	require.False(t, of("CLIP-HIGH-AS-LOW", set.With("clip.high", value("clip.high", "0.3"), "the dump")))
	require.False(t, of("CLIP-MIN-MAX", set), "which no bounds make right")
}

// What bugs are relative to is said in the words of the registry.
func TestWordsThatBugsAreRelativeTo(t *testing.T) {
	words := map[string]bool{}
	for _, b := range bug.All() {
		words[b.Against] = true
	}
	for text, options := range sayAgainst {
		require.True(t, words[text], text)
		for _, name := range options {
			_, err := convention.Find(name)
			require.NoError(t, err)
		}
	}
}
