package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRows(t *testing.T) {
	var b strings.Builder
	require.NoError(t, Rows(&b, []string{"option", "value"}, [][]string{{"adv.ddof", "1"}, {"gae.hole", "–"}}))
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	require.Len(t, lines, 4) // header, rule, two rows
	require.Equal(t, []string{"option", "value"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"adv.ddof", "1"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"gae.hole", "–"}, strings.Fields(lines[3]))
}
