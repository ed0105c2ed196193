package dump_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Steps that torch's optimisers took are recomputed, and a bug of their use is the first finding, and the only one.
func TestOptimizerSteps(t *testing.T) {
	names := map[string]string{
		"bug-l2": "OPTIM-L2", "bug-rate": "OPTIM-RATE", "bug-ascent": "OPTIM-ASCENT", "bug-no-head": "OPTIM-PARAM-MISSED", "bug-step-first": "OPTIM-LATE",
		"bug-unclipped": "OPTIM-CLIP-MISSING", "bug-each-tensor": "OPTIM-CLIP-TENSOR", "bug-norm-after": "OPTIM-NORM-CLIPPED", "bug-made-anew": "OPTIM-RESET", "bug-twice": "OPTIM-TWICE",
		"bug-betas": "OPTIM-DECLARED", "bug-cleanrl-eps": "OPTIM-DECLARED", "bug-schedule": "OPTIM-SCHEDULE", "bug-decay-sign": "OPTIM-DECAY-SIGN",
		"bug-clip-value": "OPTIM-CLIP-VALUE", "bug-clip-scaled": "OPTIM-CLIP-SCALED", "bug-kept": "OPTIM-GRAD-KEPT",
	}
	folders, err := os.ReadDir("../../golden/steps")
	require.NoError(t, err)
	seen := 0
	for _, f := range folders {
		if !f.IsDir() {
			continue
		}
		r := judge(t, filepath.Join("../../golden/steps", f.Name()), dump.Options{Brief: true})
		verdicts := map[string]check.Verdict{}
		for _, res := range r.Results {
			verdicts[res.Check] = res.Verdict
		}
		if !strings.HasPrefix(f.Name(), "bug-") {
			require.Empty(t, bad(r), f.Name())
			if f.Name() != "bfloat16" { // whose weights have too few digits
				require.Equal(t, check.Pass, verdicts["update/step"], f.Name())
			}
			require.Equal(t, check.Pass, verdicts["update/moves"], f.Name())
			continue
		}
		seen++
		require.Len(t, r.Brief.Findings, 1, "%s: %+v", f.Name(), r.Brief.Findings)
		require.Equal(t, names[f.Name()], r.Brief.Findings[0].Name, f.Name())
		require.Equal(t, check.Fail, r.Brief.Findings[0].Verdict, f.Name())
	}
	require.Equal(t, len(names), seen)
}
