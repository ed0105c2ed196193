package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// arcFaults are faults of source document D and of the catalogue, planted in the source: what stands there, what is put there, and
// the tests that must fail.
var arcFaults = []struct{ id, file, old, new, pkg, tests string }{
	{"D1: a floating target is cut to an integer", "internal/dataset/arc.go", `if strings.ContainsAny(text, ".eE") {`, `if text = text[:1]; strings.ContainsAny(text, ".eE") {`, "internal/dataset", "TestParseArcRefuses"},
	{"D1: a colour above 9 passes", "internal/dataset/arc.go", "if len(text) != 1 {", "if len(text) > 2 {", "internal/dataset", "TestParseArcRefuses"},
	{"D2: no_grad around the refinement", "internal/train/arc.go", "after := net.Predict(s.input, refined.Prompt)", "after := net.Predict(s.input, ad.Detach(refined.Prompt))", "internal/train", "TestArcGradient"},
	{"D3: the policy is updated before the step", "internal/train/arc.go", "\tad.Backward(loss, []float64{scale})\n", "\tif err := r.updatePolicy(step, b, slices.Clone(refined.State.Data()), slices.Clone(refined.U.Data()), slices.Clone(refined.Prompt.Data())); err != nil {\n\t\treturn nil, err\n\t}\n\tad.Backward(loss, []float64{scale})\n", "internal/train", "TestArcOrder"},
	{"D4: the weight is mask_ratio", "internal/train/arc.go", "b.factor = 0.5 + 0.5*b.mask", "b.factor = b.mask", "internal/train", "TestArcFormulas"},
	{"D4: the jump at 0.01 is gone", "internal/train/arc.go", "!(b.mask > 0.01)", "!(b.mask > -1)", "internal/train", "TestArcFormulas"},
	{"D5: the reward is not scaled", "internal/train/arc.go", "r.RewardScale * (b.after - b.before)", "b.after - b.before", "internal/train", "TestArcFormulas"},
	{"D6: the cache is never read", "internal/train/arc.go", "ok && r.CacheEvery > 1", "ok && r.CacheEvery > 99", "internal/train", "TestArcCache"},
	{"D7: the curriculum is not applied", "internal/train/arc.go", "scale := 0.7 * b.weight * b.factor", "scale := 0.7 * b.factor", "internal/train", "TestArcFormulas"},
	{"D7: the curriculum stays where it begins", "internal/train/arc.go", "r.curriculum[min(epoch, len(r.curriculum)-1)]", "r.curriculum[0]", "internal/train", "TestArcFormulas"},
	{"D9: the trend of the loss as it is logged", "internal/train/arc_summary.go", "(b.Loss + 0.3*b.Reward) / (0.7 * b.Curriculum * b.Hard)", "b.Loss", "internal/train", "TestArcRedFlags"},
	{"D10: the prompt is not looked at", "internal/train/arc.go", `finite(step, "prompt", prompt.Data(), nil)`, `finite(step, "prompt", nil, nil)`, "internal/train", "TestArcNamesFaults"},
	{"D11: the same prediction is compared with itself", "internal/train/arc.go", "first := net.Predict(s.input, prompt)", "first := net.Predict(s.input, net.Refine(prompt, vector(s.control(shape.Control)), vector(s.features(shape.Features)), vector(make([]float64, shape.Prompt))).Prompt)", "internal/train", "TestArcOrder"},
	{"D14: qwen is not in the optimiser", "internal/train/arc_run.go", "for _, p := range params {\n\t\tif !seen[p.Name] {", "for _, p := range params[:0] {\n\t\tif !seen[p.Name] {", "internal/train", "TestArcGroups"},
	{"D16: the prompt is detached", "internal/train/arc.go", "\treturn prompt\n}", "\treturn ad.Detach(prompt)\n}", "internal/train", "TestArcGradient"},
	{"D17: the hook looks at another layer", "internal/train/arc.go", `encoderPrefix+"layers.0."`, `"agent."`, "internal/train", "TestArcNamesFaults"},
	{"D18: a loss without a path is no error", "internal/train/arc.go", "if !loss.NeedsGrad() {", "if loss == nil {", "internal/train", "TestArcNamesFaults"},
	{"D19: the loss may explode", "internal/train/arc.go", "!(m <= 3*math.Abs(r.more.First))", "!(m <= 3e300*math.Abs(r.more.First))", "cmd/train", "TestArcRefuses"},
	{"D14: the encoder has the agent's learning rate", "internal/train/arc_run.go", "{groupQwen, r.QwenLR, r.WeightDecay, r.MaxNorm}", "{groupQwen, r.AgentLR, r.WeightDecay, r.MaxNorm}", "internal/train", "TestArcGroups"},
	{"H8: the update has no gradient", "internal/train/arc.go", "logp, value, entropy := net.Evaluate(state, action)", "logp, value, entropy := net.Evaluate(state, action)\n\tlogp, value = ad.Detach(logp), ad.Detach(value)", "internal/train", "TestArcPolicyGradient|TestArcFormulas"},
	{"H8: the action is the mean", "internal/train/arc.go", "noise[i] = rng.New", "noise[i] = 0 * rng.New", "internal/train", "TestArcOrder"},
	{"H9: the projection is in no group", "internal/train/arc_run.go", `case strings.HasPrefix(name, "qwen."):`, `case strings.HasPrefix(name, "qwen.transformer."):`, "internal/train", "TestArc"},
	{"H10: the prompt is made of the target too", "internal/train/arc_rule.go", "slices.Concat(s.pairs[:s.but-1], s.pairs[s.but:])", "slices.Concat(s.pairs[:s.but-1], s.pairs[s.but-1:])", "internal/train", "TestArcSeesNoTarget"},
	{"H10: validation sees its target", "internal/train/arc_rule.go", "test = append(test, arcSample{t.Name, p.Input, p.Output, t.Train, 0})", "test = append(test, arcSample{t.Name, p.Input, p.Output, append(t.Train[:len(t.Train):len(t.Train)], p), 0})", "internal/train", "TestArcSeesNoTarget"},
	{"H12: one prompt for all tasks", "internal/train/arc_rule.go", "for _, p := range s.examples() {\n\t\tgrids", "for _, p := range s.examples()[:0] {\n\t\tgrids", "internal/train", "TestArcSeesNoTarget"},
	{"H12: the cache is lost by a checkpoint", "internal/train/arc_run.go", "for key := range r.cache {", "for key := range map[[32]byte]int{} {", "internal/train", "TestArcResume"},
	{"D.3: grid_matching counts once", "reference/rl/efe.go", "float64((1 + o.Consistency) * g)", "g", "reference/rl", "TestEFETape"},
	{"D.3: the risk is not scaled by the uncertain cells", "reference/rl/efe.go", "scale := 0.5 + float64(0.5*(1-e.Uncertain))", "scale := 1.0", "reference/rl", "TestEFE"},
	{"D.3: the mixture's entropy under the name of JS", "reference/rl/efe_terms.go", "if kind == MixtureEntropy {", "if kind >= 0 {", "reference/rl", "TestEFE"},
	{"D.3: the movements are differences", "reference/rl/efe_terms.go", "+ (center[moves-1-t][a] - center[moves-t][a])", "- (center[moves-1-t][a] - center[moves-t][a])", "reference/rl", "TestEFE"},
	{"D.3: the target preference moves by a constant", "internal/train/arc.go", "rate := 0.05 + 0.15*accuracy", "rate := 0.05 + 0.15", "internal/train", "TestArcPreferences"},
}

// Every edit applies to the source as it is, and the tests that must catch it are there.
func TestArcFaultsApply(t *testing.T) {
	for _, f := range arcFaults {
		text, err := os.ReadFile(filepath.Join("../..", f.file))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), f.old), "%s: %s", f.id, f.old)
		require.NotEqual(t, f.old, f.new)
		names := testsOf(t, filepath.Join("../..", f.pkg))
		for _, name := range strings.Split(f.tests, "|") {
			found := false
			for test := range names {
				found = found || strings.HasPrefix(test, name)
			}
			require.True(t, found, "%s: no test %s in %s", f.id, name, f.pkg)
		}
	}
}
