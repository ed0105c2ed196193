package dump

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// A bug convicts where nothing is declared if no configuration makes its numbers right, and if its own bounds are narrow enough to judge them.
func TestWhatConvictsWithoutADeclaration(t *testing.T) {
	known := func(id string, verdict check.Verdict, casts bool) fault.Explanation {
		return fault.Explanation{Hypothesis: &fault.Hypothesis{ID: id}, Outcome: &stage.Outcome{Verdict: verdict, Arithmetic: stage.Arithmetic{Casts: casts}}}
	}
	lead := known("ADV-CENTER", check.Pass, false)
	lead.Lead = true
	for _, c := range []struct {
		name string
		bugs []fault.Explanation
		want bool
	}{
		{"of any configuration", []fault.Explanation{known("OLD-RECOMPUTED", check.Pass, false)}, true},
		{"in 16 bits, narrow enough", []fault.Explanation{known("OLD-RECOMPUTED", check.Pass, true)}, true},
		{"in 16 bits, too wide", []fault.Explanation{known("OLD-RECOMPUTED", check.Undetermined, true)}, false},
		{"against a declaration that is not there", []fault.Explanation{known("ADV-CENTER", check.Pass, false), known("KL-ABSENT", check.Pass, false)}, false},
		{"one that needs no declaration behind one that does", []fault.Explanation{known("ADV-CENTER", check.Pass, false), known("ADV-ROWS-ROLLED", check.Pass, false)}, true},
		{"leads, which are judged elsewhere", []fault.Explanation{lead}, true},
	} {
		track := &track{why: explanation{faults: c.bugs}}
		require.Equal(t, c.want, track.convicted(), c.name)
	}
}

// Every prefix is of bugs that there are: one that was renamed would convict again.
func TestRelativeBugsExist(t *testing.T) {
	for _, begin := range relative {
		require.True(t, slices.ContainsFunc(bug.All(), func(b *bug.Bug) bool { return strings.HasPrefix(b.ID, begin) }), begin)
	}
}
