package stage

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/verify/convention"
)

// valued returns the options of a value loss of a profile, half of them other ones.
func valued(p *convention.Profile, k int) *convention.Set {
	r := rand.New(rand.NewPCG(uint64(k), 77))
	set := configuration(p, "ppo", k)
	for _, kv := range []string{"value.clip=0.5", "value.coef=0.5"} { // what nemo-ppo@7ea279a leaves open may be unknown
		set = with(set, kv)
	}
	if k%2 == 1 {
		draw := func(values ...string) string { return values[r.IntN(len(values))] }
		set = with(set, "value.factor="+draw("0.5", "1")+" value.clip="+draw("none", "0.1", "0.3", "1")+" value.coef="+draw("0.1", "1", "2")+" value.agg="+draw("same", "token"))
		if !has("mask.tokens", "none")(set) {
			set = with(set, "value.mask="+draw("response", "p1", "none"))
		}
	}
	if has("agg.kind", "luspo")(set) { // a policy loss alone
		set = with(set, "agg.kind=token")
	}
	return set
}

// valuesTaped compares value loss and dvalues with the tape.
func (s *subject) valuesTaped() string {
	g := s.critic()
	if g.Rows > 1 && s.r.IntN(2) == 0 {
		g = split(g, 1+s.r.IntN(g.Rows-1), 1+s.r.IntN(2))
	}
	for i := range g.Mask { // on the target, or where nothing has moved
		switch s.r.IntN(8) {
		case 0:
			g.Token("values_new")[i] = g.Token("values")[i]
		case 1:
			g.Token("values_new")[i] = g.Token("returns")[i]
		}
	}
	want := s.valueOnTape(g)
	if broken := onTheTape("value loss of file", nil, s.predict("aggregate/value_loss", g.Batch).Want, want.file); broken != "" {
		return broken
	}
	return onTheTape("dvalues of cell", nil, s.predict("gradient/dvalues", g.Batch).Want, want.grad)
}

func tryValues(p *convention.Profile, d drawn, f *fault) string {
	set := valued(p, d.completion)
	return tryTape(p, "ppo", d, f, func(s *subject) string { s.set = set; return s.valuesTaped() })
}

func valueProfiles() (all []*convention.Profile) {
	for _, p := range convention.Profiles() {
		if values(opened(p, openValues)) {
			all = append(all, p)
		}
	}
	return all
}

// TestValueTape: value loss and dvalues of every profile that has one are those of the tape.
func TestValueTape(t *testing.T) {
	require.Len(t, valueProfiles(), 11)
	for _, p := range valueProfiles() {
		t.Run(p.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				d := drawCase(t)
				if broken := tryValues(p, d, nil); broken != "" {
					t.Fatal(broken, " under", fmt.Sprint(valued(p, d.completion).Value("value.mask"), described(valued(p, d.completion))))
				}
			})
		})
	}
}

func TestValueTapeRejects(t *testing.T) {
	for name, f := range map[string]fault{
		"value.factor": {options: "value.factor=0.5 value.coef=1"}, "no clip": {options: "value.clip=none"}, "another clip": {options: "value.clip=0.01"},
		"the denominator": {options: "agg.kind=token_sum"}, "an error of 10⁻⁹": relative,
	} {
		for _, p := range valueProfiles() {
			r := rand.New(rand.NewPCG(7, 2))
			rejected := false
			for k := 0; k < 40 && !rejected; k++ {
				rejected = tryValues(p, drawn{1 + r.IntN(5), 1 + r.IntN(8), k % variants, r.Uint64()}, &f) != ""
			}
			require.True(t, rejected, "%s under %s", name, p.Name)
		}
	}
}
