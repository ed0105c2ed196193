package dataset

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/rng"
)

func TestReward(t *testing.T) {
	for _, c := range []struct {
		response string
		truth    float64
		want     float64
	}{
		{"so #### 72", 72, 1}, {"#### 1,200", 1200, 1}, {"####1200.", 1200, 1}, {"#### $1,200.50 and", 1200.5, 1}, {"#### -3", -3, 1},
		{"#### 5\n#### 72", 72, 1}, {"#### 72\n#### 5", 72, .1}, {"#### 99.9", 100, .1}, {"#### 71", 72, .1},
		{"72", 72, 0}, {"### 72", 72, 0}, {"#### seventy", 72, 0}, {"", 0, 0}, {"#### .5", .5, 1}, {"#### 72 apples", 72, 1},
		{"#### 1e400", 72, .1}, {"####", 0, 0},
	} {
		require.Equal(t, c.want, Reward(c.response, c.truth), c.response)
	}
}

func TestReadGSM8K(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.jsonl")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o644)) }
	write("{\"question\": \"Ü?\", \"answer\": \"a\\n#### 1,234\", \"id\": [1]}\n\n{\"answer\":\"#### 5\",\"question\":\"q\"}")
	list, err := ReadGSM8K(path)
	require.NoError(t, err)
	require.Equal(t, []Question{{"Ü?", "a\n#### 1,234", 1234}, {"q", "#### 5", 5}}, list)
	for text, want := range map[string]string{
		"{\"question\":\"a\",\"answer\":\"#### 1\"}\n{\"question\":\"a\"}": "line 2: no field \"answer\"",
		"{\"answer\":\"#### 1\"}":                     "line 1: no field \"question\"",
		"{\"question\":\"a\",\"answer\":\"1\"}":       "no number after ####",
		"{\"question\":1,\"answer\":\"#### 1\"}":      "line 1: no row",
		"{\"question\":\"a\",\"answer\":\"#### 1\"}x": "line 1: no row",
		"[1]": "no row", "": "has no rows", "\n\n": "has no rows",
	} {
		write(text)
		_, err := ReadGSM8K(path)
		require.ErrorContains(t, err, want, text)
		require.True(t, format.IsMalformed(err))
	}
}

func TestAdditions(t *testing.T) {
	seen := map[string]bool{}
	for _, q := range Additions(rng.New(1, 2), 2000, 9) {
		require.Equal(t, 1.0, Reward(q.Answer, q.Truth))
		require.GreaterOrEqual(t, q.Truth, 0.0)
		require.LessOrEqual(t, q.Truth, 18.0)
		seen[q.Question] = true
	}
	require.Len(t, seen, 100)
}

// TestOrder: every n samples are a permutation, two passes differ, and a sample does not depend on which were asked before.
func TestHoldOut(t *testing.T) {
	list := Additions(rng.New(1, 1), 300, 4) // 25 different questions
	train, held, err := HoldOut(list, 7, rng.New(2, 2))
	require.NoError(t, err)
	require.Len(t, held, 7)
	out := map[string]bool{}
	for _, q := range held {
		require.False(t, out[q.Question], "each is another")
		out[q.Question] = true
	}
	kept := 0
	for _, q := range list {
		if !out[q.Question] {
			require.Equal(t, q, train[kept], "in their order")
			kept++
		}
	}
	require.Len(t, train, kept)
	train, held, err = HoldOut(list, 0, rng.New(2, 2))
	require.NoError(t, err)
	require.Equal(t, list, train)
	require.Empty(t, held)
	for _, n := range []int{25, 26, 1000} {
		_, _, err = HoldOut(list, n, rng.New(2, 2))
		require.ErrorContains(t, err, "25 different questions")
	}
}

func TestOrder(t *testing.T) {
	const n = 50
	o := NewOrder(rng.New(3, 4), n)
	var all []int
	for i := range 3 * n {
		all = append(all, o.At(i))
	}
	for e := range 3 {
		seen := map[int]bool{}
		for _, row := range all[e*n : (e+1)*n] {
			seen[row] = true
		}
		require.Len(t, seen, n)
	}
	require.NotEqual(t, all[:n], all[n:2*n])
	require.Equal(t, all[77], NewOrder(rng.New(3, 4), n).At(77))
}

func FuzzGSM8K(f *testing.F) {
	f.Add([]byte("{\"question\":\"a\",\"answer\":\"#### 1\"}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := ParseGSM8K("f", data)
		if err == nil && len(list) == 0 || err != nil && !format.IsMalformed(err) {
			t.Fatal(list, err)
		}
	})
}
