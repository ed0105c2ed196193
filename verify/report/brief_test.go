package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// However little room there is, a name is not told without those that give the same numbers.
func TestRivalsAreAlwaysTold(t *testing.T) {
	f := &check.Finding{Name: "ONE", Title: "first", Verdict: check.Fail, Or: []string{"TWO: second"}}
	for spare := range 5 {
		p := &screen{width: defaultWidth}
		finding(p, f, spare)
		require.Contains(t, strings.Join(p.lines, "\n"), "or      TWO", "%d", spare)
	}
}
