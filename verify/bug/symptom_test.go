package bug_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
)

// Every symptom says what is seen and how to mend it; what it cites and explains is known; no id is there twice, nor that of a bug.
func TestSymptoms(t *testing.T) {
	require.Greater(t, len(bug.Symptoms()), 70)
	seen := map[string]bool{}
	for _, s := range bug.Symptoms() {
		require.False(t, seen[s.ID], s.ID)
		seen[s.ID] = true
		require.Nil(t, bug.Find(s.ID), s.ID)
		require.NotEmpty(t, s.Title, s.ID)
		require.NotEmpty(t, s.Cause+s.Better, s.ID)
		require.NotEmpty(t, s.Fix, s.ID)
		require.True(t, bug.FindCode(s.ID) != nil || len(s.Rows) > 0, "%s is no code and cites none", s.ID)
		for _, text := range []string{s.Title, s.Cause, s.Better, s.Fix, s.Dump} {
			require.False(t, strings.HasSuffix(text, "."), "%s: %s", s.ID, text)
		}
		for _, row := range s.Rows {
			require.NotNil(t, bug.FindCode(row), "%s cites %s", s.ID, row)
		}
		for _, id := range s.Explains {
			require.True(t, bug.FindSymptom(id) != nil || bug.FindCode(id) != nil, "%s explains %s", s.ID, id)
			require.NotEqual(t, s.ID, id)
		}
	}
	require.Nil(t, bug.FindSymptom("NO-SUCH"))
	require.Panics(t, func() { bug.MustFindSymptom("NO-SUCH") })
}
