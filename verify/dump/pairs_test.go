package dump_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// ofProfile is a healthy batch of the independent trainer under the values of a profile, and all options it ran under. What
// the profile leaves open was drawn, and is all that the batch declares.
func ofProfile(p *convention.Profile, seed uint64) (*dumpfile.Batch, *convention.Set) {
	set := trainer.Complete(p, rand.New(rand.NewPCG(seed, 77)))
	for _, s := range p.Settings() {
		if s.Value.Known() {
			set = set.With(s.Option.Name, s.Value, p.Name)
		}
	}
	b, ran := trainer.Healthy(trainer.Config{Set: set, Rows: 16, Cols: 16, Group: 4, Files: 2, Seed: seed + 1, Logits: true})
	b = plant.Declared(b, ran)
	b.Meta.Options = slices.DeleteFunc(slices.Clone(b.Meta.Options), func(o dumpfile.Option) bool {
		_, err := convention.Find(o.Name)
		return err == nil && p.Value(o.Name).Kind() != convention.Unknown
	})
	return b, ran
}

// pair is a batch of one profile, judged under another.
type pair struct {
	name     string
	batch    *dumpfile.Batch
	ran, set *convention.Set // the options it ran under, and those it is judged under
	report   *dump.Report
}

func judgePair(t *testing.T, p, q *convention.Profile, seed uint64) pair {
	t.Helper()
	b, ran := ofProfile(p, seed)
	report, err := dump.Judge(context.Background(), dump.Batches{b}, dump.Options{Profile: q.Name})
	require.NoError(t, err)
	var list []convention.NameValue
	for _, o := range b.Meta.Options {
		list = append(list, convention.NameValue{Name: o.Name, Value: o.Value})
	}
	declared, err := convention.Declare(b.Meta.Framework+" "+b.Meta.Algorithm, b.Meta.Version, list, "the dump")
	require.NoError(t, err)
	set, _ := convention.FromProfile(q).Over(declared.Set)
	return pair{p.Name + " → " + q.Name, b, ran, set, report}
}

// unjudged are the checks that have no prediction under the values that a batch ran under, so that no search can find these:
// a failure under another profile then names what was not excluded.
var unjudged = map[string]string{
	"recrl@0ce4bed kl/token":        "kl.kind seq_prob is one number of a sequence, and kl/token predicts estimates per token",
	"recrl@0ce4bed gradient/dlogp":  "the gradient of kl.kind seq_prob is not predicted",
	"verl-grpo@0.8 advantage/group": "adv.multi normalize_then_sum needs rewards_per_func, and the batch has one reward",
}

// pairCount is what was found in pairs.
type pairCount struct {
	results, conventions, trueValues, ties int
	open                                   []string // failures that no value explains, of the list above
}

// examine holds what a report says of a pair against the options that the batch ran under.
func (x pair) examine(t *testing.T, n *pairCount) {
	t.Helper()
	for _, r := range x.report.Results {
		n.results++
		ch := stage.Find(r.Check)
		if ch == nil && r.Verdict == check.Convention && r.Explanations[0].Options[0].Option == "ratio.old" {
			continue // a rule across steps, which the declared profile has and that of the batch has not
		}
		switch r.Verdict {
		case check.Pass:
			n.ties += x.tied(t, ch)
		case check.Undetermined:
			require.NotEmpty(t, r.Reason, "%s %s: undetermined, without a reason", x.name, r.Check)
		case check.Fail:
			p, _, _ := strings.Cut(x.name, " ")
			own := stage.Judge(ch, x.batch, x.ran)
			if _, listed := unjudged[p+" "+r.Check]; !listed || own.Verdict == check.Pass {
				t.Errorf("%s: a failure that no option explains; under the options that it ran under: %v%s", x.name, own.Verdict, describe([]check.Result{r}))
			}
			n.open = append(n.open, x.name+" "+r.Check)
		case check.Convention:
			n.conventions++
			x.convention(t, ch, r, n)
		}
	}
}

// convention demands that the check is right under the values that an explanation names, and that options on which the two
// profiles differ are among them.
func (x pair) convention(t *testing.T, ch *stage.Check, r check.Result, n *pairCount) {
	t.Helper()
	differ, same := false, false
	for _, e := range r.Explanations {
		if len(e.Options) == 0 {
			continue
		}
		set := x.set
		asRun := true
		for _, o := range e.Options {
			v, err := convention.Parse(o.Option, o.Value)
			require.NoError(t, err)
			set = set.With(o.Option, v, "test")
			differ = differ || x.ran.Value(o.Option) != x.set.Value(o.Option)
			asRun = asRun && x.ran.Value(o.Option) == v
		}
		same = same || asRun
		if o := stage.Judge(ch, x.batch, set); o.Verdict == check.Fail {
			t.Errorf("%s %s: fails under %s, too", x.name, r.Check, e.Title)
		}
	}
	if !differ {
		t.Errorf("%s: names only options on which the profiles agree%s", x.name, describe([]check.Result{r}))
	}
	if same {
		n.trueValues++
	}
}

// tied returns 1 if a check that passes reads options on which the profiles differ, and demands that its predictions under both
// are equal within their bounds.
func (x pair) tied(t *testing.T, ch *stage.Check) int {
	t.Helper()
	if ch == nil || ch.Predict == nil {
		return 0
	}
	a, b := stage.Judge(ch, x.batch, x.ran), stage.Judge(ch, x.batch, x.set)
	if a.Verdict != check.Pass || b.Verdict != check.Pass || !slices.ContainsFunc(b.Case.Read, func(o string) bool { return x.ran.Value(o) != x.set.Value(o) }) {
		return 0
	}
	masked := func(i int) bool {
		return a.Pred.Judge != nil && !a.Pred.Judge[i] || a.Pred.Judge == nil && len(a.Pred.Want) == len(x.batch.Mask) && !x.batch.Mask[i]
	}
	straddles := func(p *stage.Prediction, i int) bool { return p.Alt != nil && !math.IsNaN(p.Alt[i]) }
	for i, want := range a.Pred.Want {
		if masked(i) || straddles(a.Pred, i) || straddles(b.Pred, i) || math.IsNaN(want) && math.IsNaN(b.Pred.Want[i]) {
			continue
		}
		limit := (a.Pred.Bound[i] + b.Pred.Bound[i] + 2*tol.Storage(want, tol.U32, tol.Eta32)) * (1 + 64*tol.U32)
		if d := math.Abs(want - b.Pred.Want[i]); !(d <= limit) {
			t.Errorf("%s %s passes, but element %d is %g under one profile and %g under the other, further apart than %g", x.name, ch.ID, i, want, b.Pred.Want[i], limit)
			return 1
		}
	}
	return 1
}

// orderedPairs returns all pairs of different profiles, and the seed of the first one's batch.
func orderedPairs() (pairs [][2]*convention.Profile, seeds []uint64) {
	for i, p := range convention.Profiles() {
		for _, q := range convention.Profiles() {
			if p != q {
				pairs, seeds = append(pairs, [2]*convention.Profile{p, q}), append(seeds, uint64(i))
			}
		}
	}
	return pairs, seeds
}

func (n *pairCount) log(t *testing.T, pairs int) {
	t.Helper()
	t.Logf("%d pairs, %d results: %d CONVENTION, %d of which name exactly the values of the batch, others a set that fits as well; %d checks pass though options that they read differ",
		pairs, n.results, n.conventions, n.trueValues, n.ties)
	for _, f := range n.open {
		p, _, _ := strings.Cut(f, " ")
		t.Logf("open: %s (%s)", f, unjudged[p+f[strings.LastIndex(f, " "):]])
	}
}

// TestProfilesPassThemselves judges every profile's batch under that profile.
func TestProfilesPassThemselves(t *testing.T) {
	for i, p := range convention.Profiles() {
		x := judgePair(t, p, p, uint64(i))
		require.Empty(t, bad(x.report), "%s%s", p.Name, describe(bad(x.report)))
	}
}

// TestConventionPairs judges batches of one profile under another: what does not pass is explained by options on which they
// differ. Every twentieth pair is taken here; the build tag slow has all of them.
func TestConventionPairs(t *testing.T) {
	pairs, seeds := orderedPairs()
	var n pairCount
	taken := 0
	for i, pq := range pairs {
		if (i+i/20)%(20*cases.Every) != 0 {
			continue
		}
		taken++
		judgePair(t, pq[0], pq[1], seeds[i]).examine(t, &n)
	}
	require.Greater(t, n.conventions, taken, "more than one a pair")
	n.log(t, taken)
}
