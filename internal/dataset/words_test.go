package dataset_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/dataset"
	"plumbline/internal/rng"
)

// Every catalogue asks about 64 items, each once.
func TestItemPrompts(t *testing.T) {
	all := map[string]bool{}
	for _, name := range []string{"books", "ml25m", "steam"} {
		list := dataset.ItemPrompts(name)
		require.Len(t, list, 64)
		for _, p := range list {
			require.Regexp(t, `^Why (read|see|play) [a-z]{3,4}\?$`, p)
			require.False(t, all[p], p)
			all[p] = true
		}
	}
	require.Nil(t, dataset.ItemPrompts("ml"))
}

// A list has 4 to 10 words of at most two letters and ends with a full stop; all lengths occur; a question is about a book.
func TestWordLists(t *testing.T) {
	lengths := map[int]int{}
	questions := dataset.ItemPrompts("books")
	for _, q := range dataset.WordLists(rng.New(1, 4), 500) {
		require.True(t, slices.Contains(questions, q.Question), q.Question)
		require.Regexp(t, `^([a-zI]{1,2}\.? )+[a-zI]{1,2}\.$`, q.Answer)
		lengths[len(strings.Fields(q.Answer))]++
	}
	for n := 4; n <= 10; n++ {
		require.Greater(t, lengths[n], 40, "%d words", n) // 500/7 = 71
	}
	require.Len(t, lengths, 7)
	a, b := dataset.WordLists(rng.New(1, 4), 20), dataset.WordLists(rng.New(1, 4), 30)
	require.Equal(t, a, b[:20], "a row does not depend on how many there are")
}
