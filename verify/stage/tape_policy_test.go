package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/cases"
	"plumbline/verify/convention"
)

// variants is how many sets of options are drawn for a loss kind on top of a profile.
const variants = 16

// redrawn are the options that half of the variants change: other configurations of the same framework, and of none.
func redrawn(name string) bool {
	for _, prefix := range []string{"ratio.", "clip.", "kl.", "agg.", "sapo.", "vespo.", "dppo.", "dro.", "cov."} {
		if strings.HasPrefix(name, prefix) {
			return name != "kl.index_base" && name != "kl.reduce" && name != "kl.adaptive"
		}
	}
	return false
}

// small draws numbers of a size at which clamps and clips act on the batches of these tests.
func small(r *rand.Rand, o *convention.Option) convention.Value {
	x := float64(1+r.IntN(100)) / 100
	switch {
	case o.Range == convention.AboveOne:
		x++
	case o.Name == "ratio.len_eps", o.Name == "agg.len_eps":
		x /= 10
	case strings.Contains(o.Name, "clamp"), strings.Contains(o.Name, "max"), strings.HasPrefix(o.Name, "vespo."):
		x *= 2
	case o.Name == "cov.upper":
		x += 1
	case o.Name == "cov.lower":
		x -= 1
	case strings.HasPrefix(o.Name, "clip."), strings.HasSuffix(o.Name, "beta"):
		x /= 2
	}
	return convention.NumberValue(x)
}

// configured returns a loss kind under the options of a profile; options that the kind needs and the profile does not have
// are drawn.
func configured(p *convention.Profile, kind string, k int) *convention.Set {
	r := rand.New(rand.NewPCG(uint64(k), uint64(len(p.Name)+len(kind))<<8|uint64(p.Name[0])))
	set := with(complete(p, "ratio.old=stored", k), "loss.kind="+kind+" entropy.coef=0 kl.adaptive=none mean.empty=zero")
	for _, o := range convention.Options() {
		v := set.Value(o.Name)
		number := o.Type == convention.NumberType || o.Type == convention.OrNoneType
		needed := v.Kind() == convention.NotApplicable && (o.Type == convention.NumberType || o.Type == convention.BoolType || o.Name == "agg.empty_rows" || o.Name == "kl.kind")
		switch {
		case !redrawn(o.Name), !needed && (k%2 == 0 || r.IntN(2) == 0):
		case number && (o.Type == convention.NumberType || r.IntN(3) > 0):
			set = set.With(o.Name, small(r, o), p.Name)
		default:
			list := set.Among(o.Name)
			set = set.With(o.Name, list[r.IntN(len(list))], p.Name)
		}
	}
	switch kind {
	case "gspo":
		set = with(set, "ratio.level=seq_mean")
	case "clip_cov": // what it draws shows in the losses of tokens
		set = with(set, "ratio.level=token")
	}
	if set.Value("kl.kind").String() == "seq_prob" { // one number per sequence
		set = with(set, "kl.kind=k1")
	}
	if k%4 == 1 { // a KL term in the loss, whatever the profile
		set = with(set, "kl.place=loss kl.beta=0.25")
	}
	return set
}

// described lists the options of a policy loss.
func described(set *convention.Set) (text string) {
	for _, name := range set.Names() {
		if v := set.Value(name); v.Known() && (redrawn(name) || strings.HasPrefix(name, "tis.applies")) {
			text += " " + name + "=" + v.String()
		}
	}
	return text
}

var configurations sync.Map // of *convention.Set

func configuration(p *convention.Profile, kind string, k int) *convention.Set {
	key := fmt.Sprint(p.Name, " ", kind, " ", k)
	set, ok := configurations.Load(key)
	if !ok {
		set, _ = configurations.LoadOrStore(key, configured(p, kind, k))
	}
	return set.(*convention.Set)
}

// moved draws the batch of an update: one file or two, rows that may be empty, engine weights in some.
func (s *subject) moved() grid {
	g := s.grid(true)
	if g.Rows > 1 && s.r.IntN(2) == 0 {
		g = split(g, 1+s.r.IntN(g.Rows-1), 1+s.r.IntN(2))
	}
	if f := g.Files[0]; f.Hi-f.Lo > 1 && s.r.IntN(4) == 0 {
		for t := range g.Cols {
			g.Mask[t] = false
		}
	}
	n := len(g.Mask)
	drift := []float64{0.05, 0.3, 1}[s.r.IntN(3)]
	old := s.draw(n, func() float64 { return -0.05 - s.r.ExpFloat64() })
	near := func() []float64 {
		return mapped(old, func(_ int, l float64) float64 {
			if s.r.IntN(10) == 0 {
				return l
			}
			return l + drift*s.r.NormFloat64()
		})
	}
	g.token("logp_new", mapped(near(), func(_ int, l float64) float64 { return min(l, -1e-3) })...).token("logp_old", old...).token("logp_ref", near()...)
	adv := s.draw(n, s.r.NormFloat64)
	for i := range adv {
		if s.r.IntN(8) == 0 {
			adv[i] = 0
		}
	}
	g.token("advantages", adv...)
	if s.text("ratio.old", "stored") == "engine" {
		g.token("logp_gen", near()...)
	}
	if s.r.IntN(3) == 0 && s.text("loss.kind", "") != "gmpo" {
		g.token("is_weights", s.draw(n, func() float64 { return math.Exp(s.r.NormFloat64() / 3) })...)
	}
	return g
}

// onTheTape compares numbers with those of the tape, to 1e-12 of 1 or of their size.
func onTheTape(what string, on []bool, got, want []float64) string {
	for i, w := range want {
		if (on == nil || on[i]) && !(math.Abs(got[i]-w) <= 1e-12*max(1, math.Abs(w))) {
			return fmt.Sprintf("%s %d: %v, on the tape %v", what, i, got[i], w)
		}
	}
	return ""
}

// taped compares the predictions of loss, token loss and dlogp with the tape.
func (s *subject) taped(g grid) string {
	x := s.onTape(g)
	if s.text("loss.kind", "") == "clip_cov" {
		g = x.leaveOut(s)
	}
	want := x.policyLoss()
	if s.text("loss.kind", "") == "clip_cov" { // what was drawn shows in the token losses alone
		g.token("token_loss", want.token...)
	}
	if broken := onTheTape("loss of file", nil, s.loss(g).Want, want.file); broken != "" {
		return broken
	}
	p := s.predict("token_loss/policy", g.Batch)
	got := slices.Clone(p.Want)
	for i, d := range x.drop {
		switch {
		case d && p.Alt == nil:
			return "a token that was left out has no other value"
		case d:
			got[i] = p.Alt[i]
		}
	}
	if broken := onTheTape("token loss of cell", x.on, got, want.token); broken != "" {
		return broken
	}
	return onTheTape("dlogp of cell", nil, s.dlogp(g).Want, want.grad)
}

// leaveOut draws which candidates clip_cov leaves out; none where a weight or a KL term hides it from who reads the dump.
func (x *taped) leaveOut(s *subject) grid {
	g := grid{x.g.Batch}
	x.drop = make([]bool, len(g.Mask))
	if x.weights != nil || s.text("kl.place", "none") == "loss" && s.num("kl.beta", 0) != 0 {
		return g
	}
	rho := x.ratioAt().Data()
	lo, hi := 1-s.num("clip.low", infinite), 1+s.num("clip.high", infinite)
	for i, c := range x.covariance() {
		a := x.adv.Data()[i]
		clipped := -a*max(min(rho[i], hi), lo) > -a*rho[i]
		candidate := x.on[i] && !clipped && c > s.num("cov.lower", math.NaN()) && c < s.num("cov.upper", math.NaN())
		x.drop[i] = candidate && a != 0 && s.r.IntN(2) == 0
	}
	return g
}

func lossKinds(t testing.TB) []string {
	o, err := convention.Find("loss.kind")
	require.NoError(t, err)
	return o.Values
}

// tryTape tests one case of a loss kind on top of a profile.
func tryTape(p *convention.Profile, kind string, d drawn, f *fault, compare func(s *subject) string) (broken string) {
	defer func() {
		if x := recover(); x != nil {
			text, ok := x.(refusal)
			if !ok {
				panic(x)
			}
			broken = string(text)
		}
	}()
	s := &subject{set: configuration(p, kind, d.completion), r: rand.New(rand.NewPCG(d.seed, 3)), rows: d.rows, cols: d.cols, fault: f}
	return compare(s)
}

func drawCase(t *rapid.T) drawn {
	return drawn{rapid.IntRange(1, 5).Draw(t, "rows"), rapid.IntRange(1, 8).Draw(t, "columns"),
		rapid.IntRange(0, variants-1).Draw(t, "variant"), rapid.Uint64().Draw(t, "seed")}
}

// TestPolicyTape: loss, token loss and gradient of every loss kind on top of every profile are those of the tape.
func TestPolicyTape(t *testing.T) {
	for _, kind := range lossKinds(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for i, p := range convention.Profiles() {
				if i%cases.Every != 0 {
					continue
				}
				t.Run(p.Name, func(t *testing.T) {
					rapid.Check(t, func(t *rapid.T) {
						d := drawCase(t)
						if broken := tryTape(p, kind, d, nil, func(s *subject) string { return s.taped(s.moved()) }); broken != "" {
							t.Fatal(broken, " under", described(configuration(p, kind, d.completion)))
						}
					})
				})
			}
		})
	}
}

// tapeFaults are wrong programs of every loss kind: an option that is another one, or what a single line gets wrong.
var tapeFaults = map[string]map[string]fault{
	"ppo":       {"the upper bound": {options: "clip.high=0.03"}, "no dual clip": {options: "clip.dual=1.01"}, "a row's ratio": {options: "ratio.level=seq_mean"}},
	"reinforce": {"a ratio": {options: "loss.kind=ppo"}},
	"cispo":     {"the cap": {options: "clip.high_is_absolute=true clip.high=0.9"}, "a gradient through the weight": {options: "loss.kind=ppo"}},
	"gspo":      {"the length": {options: "ratio.len_eps=0.3"}},
	"gmpo":      {"the upper bound": {options: "clip.high=0.01"}, "the length": {options: "agg.len_eps=0.5"}},
	"sapo":      {"one temperature": {options: "sapo.tau_neg=0.3"}},
	"luspo":     {"the lower bound": {options: "clip.low=0.01"}},
	"vespo":     {"the exponent": {options: "vespo.k_neg=0.1"}, "the decay": {options: "vespo.lambda_pos=0.1"}},
	"dppo_tv":   {"the other divergence": {options: "loss.kind=dppo_kl"}, "the cap": {options: "dppo.limit=0.5"}},
	"dppo_kl":   {"the other divergence": {options: "loss.kind=dppo_tv"}, "the trust region": {options: "clip.low=0.001"}},
	"dro":       {"the coefficient": {options: "dro.beta=0.7"}},
	"clip_cov":  {"the upper bound": {options: "clip.high=0.01"}, "nothing left out": {options: "loss.kind=ppo"}},
	"kl_cov":    {"the share": {options: "cov.fraction=1"}, "the coefficient": {options: "cov.coef=0"}},
}

// anyKind are faults of what all kinds have in common.
var anyKind = map[string]fault{
	"the denominator": {options: "agg.kind=seq_mean_token_sum agg.empty_rows=counted agg.denominator=micro"},
	"the gradient of the KL": {swap: func(_ *subject, id string) func(*Case) *Prediction {
		if id != "gradient/dlogp" {
			return nil
		}
		return func(c *Case) *Prediction {
			grad := "naive"
			if v := c.Set.Value("kl.grad"); !v.Known() || v.String() == grad {
				grad = "score_function"
			}
			return Find(id).Predict(NewCase(c.B, with(c.Set, "kl.grad="+grad), c.Unit))
		}
	}},
	"an error of 10⁻⁹": relative,
	"A in the gradient": {swap: func(_ *subject, id string) func(*Case) *Prediction {
		if id != "gradient/dlogp" {
			return nil
		}
		return func(c *Case) *Prediction {
			p := Find(id).Predict(c)
			p.Want = mapped(p.Want, func(i int, d float64) float64 { return d * (1 + 1e-6*c.B.Token("advantages")[i]) })
			return p
		}
	}},
}

// TestPolicyTapeRejects: the same comparison rejects every fault of a kind under some profile, and under every profile one that
// all kinds have in common.
func TestPolicyTapeRejects(t *testing.T) {
	find := func(p *convention.Profile, kind string, f *fault) bool {
		r := rand.New(rand.NewPCG(7, 1))
		for k := range 40 {
			d := drawn{1 + r.IntN(5), 1 + r.IntN(8), k % variants, r.Uint64()}
			if tryTape(p, kind, d, f, func(s *subject) string { return s.taped(s.moved()) }) != "" {
				return true
			}
		}
		return false
	}
	for _, kind := range lossKinds(t) {
		require.NotEmpty(t, tapeFaults[kind], kind)
		for name, f := range tapeFaults[kind] {
			require.True(t, slices.ContainsFunc(convention.Profiles(), func(p *convention.Profile) bool { return find(p, kind, &f) }), "%s: %s", kind, name)
		}
		for name, f := range anyKind {
			if kind == "gmpo" && name == "the denominator" {
				continue // it is a mean over rows whatever agg.kind is
			}
			for _, p := range convention.Profiles() {
				require.True(t, find(p, kind, &f), "%s on top of %s: %s", kind, p.Name, name)
			}
		}
	}
}
