package bug_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
)

// Every bug says what it is and what it does to training, in the form that reports print; its codes are known, and no id is there
// twice.
func TestRegistry(t *testing.T) {
	require.Greater(t, len(bug.All()), 200)
	seen := map[string]bool{}
	for _, b := range bug.All() {
		require.Regexp(t, regexp.MustCompile(`^[A-Z0-9]+(-[A-Z0-9]+)*$`), b.ID)
		require.False(t, seen[b.ID], b.ID)
		seen[b.ID] = true
		require.NotEmpty(t, b.Title, b.ID)
		require.NotEmpty(t, b.Effect, b.ID)
		require.NotEmpty(t, b.Before, "%s: the code that has it", b.ID)
		require.NotEmpty(t, b.After, "%s: the code that is right", b.ID)
		require.NotEqual(t, b.Before, b.After, b.ID)
		for _, text := range []string{b.Title, b.Cause, b.Effect, b.Fix} {
			require.False(t, strings.HasSuffix(text, "."), "%s: %s", b.ID, text)
		}
		require.NotRegexp(t, regexp.MustCompile(`\bdeclare\b`), b.Fix, "%s: a fix never asks to declare what was not meant", b.ID)
		first := []rune(b.Title)[0]
		require.False(t, unicode.IsUpper(first) && unicode.IsLower([]rune(b.Title + "  ")[1]), "%s: %s", b.ID, b.Title)
		for _, row := range b.Rows {
			require.NotNil(t, bug.FindCode(row), "%s cites %s", b.ID, row)
		}
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(b.Rows))), len(b.Rows), b.ID)
	}
	require.Nil(t, bug.Find("NO-SUCH"))
	require.Panics(t, func() { bug.MustFind("NO-SUCH") })
}

func TestCodes(t *testing.T) {
	require.Greater(t, len(bug.Codes()), 300)
	seen := map[string]bool{}
	for _, c := range bug.Codes() {
		require.Regexp(t, regexp.MustCompile(`^[ABCDHPV][0-9]+[a-z]?$`), c.ID)
		require.False(t, seen[c.ID], c.ID)
		seen[c.ID] = true
		require.NotEmpty(t, c.Text, c.ID)
	}
	require.Equal(t, []string{"trl#2617", "trl#3716", "trl#2647"}, bug.FindCode("P012").Upstream)
	require.Equal(t, "https://github.com/huggingface/trl/issues/2617", bug.FindCode("p012").Links()[0])
	require.Empty(t, bug.FindCode("V19").Links())
}
