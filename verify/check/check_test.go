package check_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/tol"
)

func TestBound(t *testing.T) {
	for _, c := range []struct {
		name            string
		measured, limit float64
		compared        int
		want            check.Verdict
	}{
		{"below", 1, 2, 1, check.Pass},
		{"equal", 2, 2, 1, check.Pass},
		{"above", 2.1, 2, 1, check.Fail},
		{"NaN measured", math.NaN(), 2, 1, check.Fail},
		{"NaN limit", 1, math.NaN(), 1, check.Fail},
		{"negative limit", -3, -2, 1, check.Fail},
		{"nothing compared", 0, 1, 0, check.Fail},
		{"infinite", math.Inf(1), 2, 1, check.Fail},
	} {
		require.Equal(t, c.want, check.Bound("x", "m", c.measured, c.limit, c.compared).Verdict, c.name)
	}
}

func TestElements(t *testing.T) {
	tally := func(void, n int) *tol.Tally {
		c := &tol.Tally{Scale: 1}
		for i := range n {
			b := 1e-6
			if i < void {
				b = 1
			}
			c.Add(i, 1, 1, b)
		}
		return c
	}
	require.Equal(t, check.Fail, check.Elements("x", "m", &tol.Tally{}, check.FromUser).Verdict, "nothing compared")
	require.Equal(t, check.Pass, check.Elements("x", "m", tally(0, 100), check.FromUser).Verdict)
	require.Equal(t, check.Pass, check.Elements("x", "m", tally(5, 100), check.FromUser).Verdict, "5 % void bounds")
	require.Equal(t, check.Undetermined, check.Elements("x", "m", tally(6, 100), check.FromUser).Verdict)
	require.Equal(t, check.Fail, check.Elements("x", "m", tally(6, 100), check.Drawn).Verdict, "a bad case of our own")
	bad := &tol.Tally{N: 2, Bad: "lengths differ: reference 1, output 2, bounds 1"}
	require.Equal(t, check.Fail, check.Elements("x", "m", bad, check.FromUser).Verdict)
}

func TestExit(t *testing.T) {
	of := func(vs ...check.Verdict) []check.Result {
		rs := make([]check.Result, len(vs))
		for i, v := range vs {
			rs[i] = check.Result{Verdict: v, Compared: 1}
		}
		return rs
	}
	for _, c := range []struct {
		name string
		rs   []check.Result
		p    check.Policy
		want int
	}{
		{"nothing", nil, check.Policy{}, 5},
		{"pass", of(check.Pass), check.Policy{}, 0},
		{"only skips", of(check.Skip, check.Skip), check.Policy{}, 5},
		{"only notes", of(check.Note), check.Policy{}, 5},
		{"only not seen", of(check.NotSeen), check.Policy{}, 5},
		{"fail wins", of(check.Pass, check.Undetermined, check.Fail), check.Policy{}, 1},
		{"undetermined", of(check.Pass, check.Undetermined), check.Policy{}, 6},
		{"warn", of(check.Pass, check.Warn), check.Policy{}, 0},
		{"warn, fail on it", of(check.Pass, check.Warn), check.Policy{FailOnWarn: true}, 1},
		{"convention undeclared", of(check.Convention), check.Policy{}, 0},
		{"convention declared", of(check.Convention), check.Policy{Declared: true}, 1},
		{"not seen, strict", of(check.Pass, check.NotSeen), check.Policy{Strict: true}, 6},
		{"skip that was demanded", []check.Result{{Verdict: check.Pass}, {Verdict: check.Skip, Demanded: true}}, check.Policy{}, 6},
		{"a warning that compared nothing decides nothing", []check.Result{{Verdict: check.Warn}}, check.Policy{}, 5},
	} {
		require.Equal(t, c.want, check.Exit(c.rs, c.p), c.name)
	}
}

// The table of cli.md and formats.md, and which code wins when several apply.
func TestExitCodes(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 130}, []int{check.ExitPass, check.ExitFail, check.ExitUsage, check.ExitInternal, check.ExitMalformed, check.ExitNothing, check.ExitUndetermined, check.ExitInterrupted})
	order := []int{130, 3, 4, 2, 1, 6, 5, 0}
	for i, a := range order {
		for _, b := range order[i:] {
			require.Equal(t, a, check.Worse(a, b))
			require.Equal(t, a, check.Worse(b, a))
		}
	}
}

func TestSuite(t *testing.T) {
	result := func(rs ...check.Result) func(int) ([]check.Result, error) {
		return func(int) ([]check.Result, error) { return rs, nil }
	}
	a := &check.Check[int]{Name: "g/a", Doc: "title\n\nmore", Fix: "mend it", Run: result(check.Result{Verdict: check.Fail}, check.Result{Verdict: check.Pass}),
		Faults: []check.Fault[int]{{ID: "F", Plant: func(_ *rand.Rand, x int) int { return x }}}}
	b := &check.Check[int]{Name: "g/b", Run: result(check.Result{Verdict: check.Skip})}
	c := &check.Check[int]{Name: "h/c", Run: result()}
	broken := &check.Check[int]{Name: "h/d", Run: func(int) ([]check.Result, error) { return nil, errors.New("disk") }}
	s := check.Suite[int]{a, b, c}

	rs, err := s.Run(0, check.Selection{})
	require.NoError(t, err)
	require.Len(t, rs, 3)
	require.Equal(t, "mend it", rs[0].Fix)
	require.Empty(t, rs[1].Fix)
	require.Equal(t, "title", s.Infos()[0].Title())
	require.Equal(t, "F", s.Infos()[0].Faults[0].ID)

	rs, err = s.Run(0, check.Selection{Select: []string{"g"}, Ignore: []string{"g/a"}})
	require.NoError(t, err)
	require.Len(t, rs, 1)
	require.Equal(t, 6, check.Exit(rs, check.Policy{}), "a skip that was asked for by name")

	rs, err = s.Run(0, check.Selection{Require: []string{"h/c"}})
	require.NoError(t, err)
	require.Equal(t, check.Undetermined, rs[len(rs)-1].Verdict, "required, and the input has nothing for it")

	_, err = check.Suite[int]{broken}.Run(0, check.Selection{})
	require.ErrorContains(t, err, "h/d: disk")
	require.Panics(t, func() {
		_, _ = check.Suite[int]{{Name: "x", Run: result(check.Result{})}}.Run(0, check.Selection{})
	}, "a forgotten verdict must not pass")

	ids := []string{"g/a", "g/b"}
	require.NoError(t, check.Selection{Select: []string{"g", "g/*", "g/b"}}.Validate(ids))
	require.ErrorContains(t, check.Selection{Ignore: []string{"g/bb"}}.Validate(ids), `"g/b"`)
}

func TestVerdictNames(t *testing.T) {
	for v := check.Pass; v <= check.Skip; v++ {
		got, err := check.ParseVerdict(v.String())
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	_, err := check.ParseVerdict("(no verdict)")
	require.Error(t, err)
}

func TestNearest(t *testing.T) {
	words := []string{"epsilon", "epsilon_high", "tol", "output", "steps"}
	for word, want := range map[string]string{"epsilonn_high": "epsilon_high", "epsilon_hihg": "epsilon_high", "tolerance": "tol", "ouput": "output", "xyzzy": ""} {
		require.Equal(t, want, check.Similar(word, words), word)
		if want != "" {
			require.Equal(t, want, check.Nearest(word, words), word)
		}
	}
	require.Empty(t, check.Similar("x", nil))
}
