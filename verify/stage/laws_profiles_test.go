package stage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// A law is a property of predictions that holds whatever the numbers are (tolerances 8.1 to 8.6). It is tested on the
// predictions of the stage checks under the options of every profile, since that is where a profile's options meet package rl.
//
// Tags: E bitwise, B within the bounds of the predictions (unit 2⁻⁵³), N by enumeration, X must differ.
type law struct {
	name  string
	given string                           // options that the law is about, in place of the profile's: "gae.lambda=0"
	open  string                           // values of options that the profile leaves open or has no use for
	where func(set *convention.Set) bool   // whether the law says something under a profile
	holds func(s *subject) (broken string) // what contradicts the law, "" if nothing does

	// faults are wrong programs. Under every profile to which the law applies it rejects at least one, and every one is rejected
	// under some profile. A law that every profile breaks has none.
	faults map[string]fault
}

// A fault changes what a program reads or what it returns.
type fault struct {
	options string                                              // computed with, whatever the options are
	before  func(s *subject, b *dump.Batch) *dump.Batch         // nil: the batch as it is
	after   func(s *subject, b *dump.Batch, p *Prediction)      // may change Want
	swap    func(s *subject, id string) func(*Case) *Prediction // another program, nil for the right one
}

// skips are the laws that a profile breaks on purpose: law → reason → profiles.
type skips map[string]map[string]string

// subject is a random case of a law.
type subject struct {
	set        *convention.Set
	r          *rand.Rand
	rows, cols int
	fault      *fault
}

// refusal is the panic of a prediction that cannot be had.
type refusal string

// predict returns the prediction of a check, computed in float64.
func (s *subject) predict(id string, b *dump.Batch) *Prediction {
	return s.predicted(id, b, Find(id).Predict)
}

// predicted is predict for any part of a check.
func (s *subject) predicted(id string, b *dump.Batch, right func(*Case) *Prediction) *Prediction {
	set := s.set
	if f := s.fault; f != nil {
		if f.options != "" {
			set = with(set, f.options)
		}
		if f.before != nil {
			b = f.before(s, b)
		}
		if f.swap != nil {
			if other := f.swap(s, id); other != nil {
				right = other
			}
		}
	}
	c := NewCase(b, set, tol.U64)
	p := right(c)
	if p == nil || !c.OK() {
		panic(refusal(fmt.Sprintf("%s: not to be had: unknown %v, absent %v", id, c.Unknown, c.Absent)))
	}
	if f := s.fault; f != nil && f.after != nil {
		q := *p
		q.Want = slices.Clone(p.Want)
		f.after(s, b, &q)
		p = &q
	}
	return p
}

// with returns the subject under other options.
func (s *subject) with(text string) *subject {
	c := *s
	c.set = with(s.set, text)
	return &c
}

// text returns the value of an option, and that of an option that has none.
func (s *subject) text(option, absent string) string {
	if v := s.set.Value(option); v.Known() {
		return v.String()
	}
	return absent
}

func (s *subject) num(option string, absent float64) float64 {
	if v := s.set.Value(option); v.Kind() == convention.Number {
		return v.Num()
	}
	return absent
}

// dyadic returns a number that sums and integer shifts keep exact.
func (s *subject) dyadic() float64 { return float64(s.r.IntN(2049)-1024) / 256 }

type changed struct {
	set  *convention.Set
	text string
}

var changedSets sync.Map // of *convention.Set by changed

// with returns set under the options "name=value …".
func with(set *convention.Set, text string) *convention.Set {
	if text == "" {
		return set
	}
	key := changed{set, text}
	if s, ok := changedSets.Load(key); ok {
		return s.(*convention.Set)
	}
	s := set
	for _, kv := range strings.Fields(text) {
		name, value, _ := strings.Cut(kv, "=")
		v, err := convention.Parse(name, value)
		if err != nil {
			panic(err)
		}
		s = s.With(name, v, "law")
	}
	known, _ := changedSets.LoadOrStore(key, s)
	return known.(*convention.Set)
}

// completions is how many ways of filling in a profile are tried.
const completions = 24

// tuned are the numbers that users choose whatever the framework; half of the completions of a profile have others.
var tuned = []string{"gae.gamma", "gae.lambda", "clip.low", "clip.high", "kl.beta", "value.clip", "value.coef"}

// opened gives the options that a profile leaves open the first of the values "name=value name=value …" that it allows; those
// that do not apply to it any.
func opened(p *convention.Profile, open string) *convention.Set {
	set := convention.FromProfile(p)
	for _, kv := range strings.Fields(open) {
		name, value, _ := strings.Cut(kv, "=")
		v, err := convention.Parse(name, value)
		if err != nil {
			panic(err)
		}
		if k := set.Value(name).Kind(); k == convention.NotApplicable || k == convention.Unknown && p.Allows(name, v) {
			set = set.With(name, v, p.Name)
		}
	}
	return set
}

// complete fills in what a profile leaves open with legal values: those that some framework has, or numbers in range. What
// fills a gap counts as said by the profile.
func complete(p *convention.Profile, open string, k int) *convention.Set {
	r := rand.New(rand.NewPCG(uint64(k), uint64(len(p.Name))<<8|uint64(p.Name[0])))
	set := opened(p, open)
	for _, o := range convention.Options() {
		switch v := set.Value(o.Name); {
		case len(o.Stages) == 0:
		case v.Kind() == convention.Unknown:
			said, _ := p.Setting(o.Name)
			set = set.With(o.Name, drawValue(r, o, set.Among(o.Name), len(said.Among) > 0), p.Name)
		case k%2 == 1 && v.Kind() == convention.Number && slices.Contains(tuned, o.Name):
			set = set.With(o.Name, drawNumber(r, o), p.Name)
		}
	}
	return set.WithFact("vapo_alpha", 2.0).WithFact("loss_denominator", 64.0).WithFact("max_completion_length", 16.0)
}

// drawValue draws one of the values in list, or a number where there are none; now and then one that no framework has, unless
// the list is all there is.
func drawValue(r *rand.Rand, o *convention.Option, list []convention.Value, all bool) convention.Value {
	number := o.Type == convention.NumberType || o.Type == convention.OrNoneType
	if len(list) == 0 || number && !all && r.IntN(3) == 0 {
		return drawNumber(r, o)
	}
	return list[r.IntN(len(list))]
}

func drawNumber(r *rand.Rand, o *convention.Option) convention.Value {
	x := float64(1+r.IntN(100)) / 100 // a grid: a tiny γλ would make subnormal products
	switch {
	case o.Range == convention.AboveOne:
		x++
	case strings.HasSuffix(o.Name, "eps"):
		x *= 1e-7
	case strings.HasPrefix(o.Name, "clip."):
		x /= 2
	case strings.HasSuffix(o.Name, "log_clamp"), strings.HasPrefix(o.Name, "kl.clamp"):
		x *= 20
	}
	return convention.NumberValue(x)
}

var completed = map[string]*convention.Set{}

func completion(p *convention.Profile, l *law, k int) *convention.Set {
	key := fmt.Sprint(p.Name, " ", k, " ", l.open)
	if completed[key] == nil {
		completed[key] = complete(p, l.open, k)
	}
	return with(completed[key], l.given)
}

// drawn is what rapid draws and shrinks: sizes and a seed.
type drawn struct {
	rows, cols, completion int
	seed                   uint64
}

// try tests the law in one case.
func (l *law) try(p *convention.Profile, d drawn, f *fault) (broken string) {
	defer func() {
		if x := recover(); x != nil {
			text, ok := x.(refusal)
			if !ok {
				panic(x)
			}
			broken = string(text)
		}
	}()
	s := &subject{set: completion(p, l, d.completion), r: rand.New(rand.NewPCG(d.seed, 5)), rows: d.rows, cols: d.cols, fault: f}
	return l.holds(s)
}

// attempts is in how many cases a fault must be rejected at least once, and a law that is skipped must break.
const attempts = 60

// find returns the first case that breaks the law.
func (l *law) find(p *convention.Profile, f *fault) string {
	r := rand.New(rand.NewPCG(11, 13))
	for k := range attempts {
		d := drawn{1 + r.IntN(5), 1 + r.IntN(8), k % completions, r.Uint64()}
		if broken := l.try(p, d, f); broken != "" {
			return broken
		}
	}
	return ""
}

// testLaws tests every law under every profile to which it applies, but for those that skip names: they must break.
func testLaws(t *testing.T, laws []law, skip skips) {
	tested, skipped := 0, 0
	for name := range skip {
		require.True(t, slices.ContainsFunc(laws, func(l law) bool { return l.name == name }), "the table skips %q, which is no law", name)
	}
	for i := range laws {
		l := &laws[i]
		t.Run(l.name, func(t *testing.T) {
			rejected := map[string]bool{}
			reasons := map[string]string{}
			for reason, names := range skip[l.name] {
				for _, name := range strings.Fields(names) {
					require.NotContains(t, reasons, name, "skipped twice")
					reasons[name] = reason
				}
			}
			applied := 0
			for _, p := range convention.Profiles() {
				if l.where != nil && !l.where(opened(p, l.open)) {
					require.NotContains(t, reasons, p.Name, "the law does not apply to what the table skips")
					continue
				}
				if reason, ok := reasons[p.Name]; ok {
					delete(reasons, p.Name)
					skipped++
					t.Run(p.Name, func(t *testing.T) {
						require.NotEmpty(t, l.find(p, nil), "the law holds, and yet the table skips it: %s", reason)
						t.Skip(reason)
					})
					continue
				}
				applied++
				tested++
				t.Run(p.Name, func(t *testing.T) {
					rapid.Check(t, func(t *rapid.T) {
						d := drawn{rapid.IntRange(1, 5).Draw(t, "rows"), rapid.IntRange(1, 8).Draw(t, "columns"),
							rapid.IntRange(0, completions-1).Draw(t, "completion"), rapid.Uint64().Draw(t, "seed")}
						if broken := l.try(p, d, nil); broken != "" {
							t.Fatal(broken)
						}
					})
					some := false
					for name, f := range l.faults {
						if l.find(p, &f) != "" {
							rejected[name], some = true, true
						}
					}
					require.True(t, some, "no fault is rejected")
				})
			}
			require.Empty(t, reasons, "the table skips profiles that are none")
			require.True(t, applied > 0 && len(l.faults) > 0 || applied == 0 && len(l.faults) == 0 && len(skip[l.name]) > 0,
				"a law that applies to no profile, or that has no fault which it rejects")
			for name := range l.faults {
				require.True(t, rejected[name], "fault %q is rejected under no profile", name)
			}
		})
	}
	t.Logf("%d laws, %d × profile, %d skipped", len(laws), tested, skipped)
}
