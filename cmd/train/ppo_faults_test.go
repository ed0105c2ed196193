//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// plant is a bug that is edited into the source of the trainer: old stands there once.
type plant struct {
	fault, name    string // id in the catalogue of the design, what is wrong
	file, old, new string
	more           []string // arguments
	says           string   // a regular expression of what the report has
}

const (
	ppoFile, dumpFile, optFile, policyFile, runFile = "internal/train/ppo.go", "internal/train/ppo_dump.go", "internal/train/optimizer.go", "internal/train/policy.go", "internal/train/run.go"
	languageFile, mastersFile                       = "internal/bind/language.go", "internal/bind/masters.go"
)

// The bugs that a run with --verify stops at: exit code 1, and the check that found it.
var caughtWhileTraining = []plant{
	{"C4", "the losses take padding in", ppoFile, `Mask: pick(r.mask, r.batch.Response, index),`, `Mask: slices.Repeat([]bool{true}, len(index)*r.batch.Response),`, nil, "FAIL|CONVENTION"},
	{"C5", "values and logits one position late", languageFile, `ad.Slice(out.Hidden, 1, b.Prompt-1, b.Prompt+b.Response-1)`, `ad.Slice(out.Hidden, 1, b.Prompt, b.Prompt+b.Response)`, nil, "agreement|logp"},
	{"C13", "the ratio is clipped at another epsilon above", ppoFile, `options := rl.UpdateOptions{ClipRatio: c.ClipRatio,`, `options := rl.UpdateOptions{ClipRatio: c.ClipRatio / 64,`, []string{"ppo.learning_rate=1e-2"}, "gradient/dlogp|aggregate/pg_loss"},
	{"C19", "advantages are not whitened", ppoFile, "\treturn r, err\n}\n\n// update makes", "\tfor i := range r.advantages {\n\t\tr.advantages[i] = r.returns[i] - r.values[i]\n\t}\n\treturn r, err\n}\n\n// update makes", nil, "gae/advantage|advantage/moments"},
	{"C19", "returns from whitened advantages", ppoFile, "\treturn r, err\n}\n\n// update makes", "\tfor i := range r.returns {\n\t\tr.returns[i] = r.advantages[i] + r.values[i]\n\t}\n\treturn r, err\n}\n\n// update makes", nil, "gae/returns"},
	{"C7", "the KL penalty has the wrong sign", ppoFile, `penalty[i] = c.KLCoeff * r.kl[i]`, `penalty[i] = -c.KLCoeff * r.kl[i]`, nil, "reward/token|gae"},
	{"C7", "KL against the sampler instead of the frozen model", ppoFile, `r.kl[i] = r.old[i] - r.ref[i]`, `r.kl[i] = r.old[i] - r.gen[i]`, []string{"generation.temperature=0.7", "generation.logprobs=processed"}, "kl/token"},
	{"H13c", "old log-probabilities are those of the sampler", ppoFile, `r.old, r.values, r.ref = now.LogProbs,`, `r.old, r.values, r.ref = slices.Clone(r.gen),`, []string{"generation.temperature=0.7", "generation.logprobs=processed"}, "first_step/ratio|agreement"},
	{"H13f", "the end is not part of the response", policyFile, `real, id := j < len(r), pad`, `real, id := j < max(1, len(r)-1), pad`, nil, "FAIL"},
	{"C6", "gradients are not divided by the accumulation", ppoFile, `d[i] /= float64(s.Divisor)`, `d[i] /= 1`, nil, "gradient/"},
	{"H13d", "the update of what is left over is divided by the whole accumulation", ppoFile, `d[i] /= float64(s.Divisor)`, `d[i] /= float64(c.Accumulation)`, []string{"ppo.rollout_samples=10", "ppo.gradient_accumulation_steps=3"}, "gradient/"},
	{"C11", "the value loss is clipped at another range", ppoFile, `ClipRangeValue: c.ClipValue,`, `ClipRangeValue: c.ClipValue / 1e4,`, []string{"ppo.learning_rate=1e-2"}, "dvalues|value_loss"},
	{"C8", "the entropy bonus has the wrong sign", ppoFile, `EntropyCoeff: c.EntropyCoeff,`, `EntropyCoeff: -c.EntropyCoeff,`, nil, "aggregate/loss|entropy"},
	{"C11", "the value loss without its coefficient", ppoFile, `VFCoeff: c.VFCoeff,`, `VFCoeff: 1,`, nil, "aggregate/loss|dvalues"},
	{"C4", "gamma and lambda are exchanged", ppoFile, `c.Gamma, c.Lambda)`, `c.Lambda, c.Gamma)`, nil, "gae/"},
	{"C5", "the reward lies one token early", ppoFile, `r.rewards[i*cols+len(ids)-1] += r.scores[i]`, `r.rewards[i*cols+max(0, len(ids)-2)] += r.scores[i]`, nil, "reward/token|gae"},
	{"H7a", "the model that is trained is not the one that was sampled from: dropout", languageFile, `slopes, err := loss(scores(b, logits, values, vocab))`, `noisy := scores(b, logits, values, vocab)
	for i := range noisy.LogProbs {
		noisy.LogProbs[i] *= 1 + 0.1*float64(i%3)
	}
	slopes, err := loss(noisy)`, nil, "first_step/ratio"},
	{"C3", "the gradient is of the ratio without its clip", ppoFile, `result.Micro[k] = u`, `for i := range u.DLogp {
					if batch.Mask[i] && u.DLogp[i] == 0 {
						u.DLogp[i] = -batch.Advantages[i] / float64(len(batch.Mask))
					}
				}
				result.Micro[k] = u`, []string{"ppo.clip_ratio=0.001", "ppo.learning_rate=1e-2"}, "gradient/dlogp"},
	{"C5", "values of the update instead of the rollout are the old ones", ppoFile, `batch.LogpNew, batch.ValuesNew, batch.Entropy = now.LogProbs, now.Values, now.Entropy`, `batch.LogpNew, batch.ValuesNew, batch.Entropy, batch.ValuesOld = now.LogProbs, now.Values, now.Entropy, now.Values`, []string{"ppo.learning_rate=1e-2"}, "gae/returns|dvalues"},
}

// The bugs of what is saved, which verify checkpoint finds in the folder of a run that ended.
var caughtInCheckpoints = []plant{
	{"H13a", "the value head is not saved", mastersFile, `if l.options.Adapter == nil || p.Name == headWeight || p.Name == headBias {`, `if p.Name != headWeight && p.Name != headBias {`, nil, "value/head"},
	{"C20", "no tokenizer", mastersFile, `text := l.options.Extra[name]`, `if strings.HasPrefix(name, "tokenizer") {
			continue
		}
		text := l.options.Extra[name]`, nil, "tokenizer/files"},
	{"D14", "the optimiser's moments are not saved", runFile, `append(files, r.optimizer.File(), r.state.file())`, `append(files, r.state.file())`, nil, "resume/optimizer"},
	{"P072", "no position in the data, no random state", runFile, `append(files, r.optimizer.File(), r.state.file())`, `append(files, r.optimizer.File())`, nil, "resume/state|run/layout"},
	{"C20", "no effective_config.yaml", "cmd/train/runner.go", `write("effective_config.yaml", s.YAML()), `, ``, nil, "run/layout"},
	{"C20", "a number that is not finite is saved", optFile, `return rundir.File{Name: optimizerFile, Write`, `tensors[0].Data = append([]float64{math.NaN()}, tensors[0].Data[1:]...)
	return rundir.File{Name: optimizerFile, Write`, nil, `\S*finite`},
}

// The edits of all tables apply to the sources as they are; what catches them is tried in the slow tests.
func TestPlantsApply(t *testing.T) {
	once := func(file, old, fault string) {
		text, err := os.ReadFile(filepath.Join("../..", filepath.FromSlash(file)))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), old), "%s in %s: %q", fault, file, old)
	}
	for _, p := range append(append([]plant{}, caughtWhileTraining...), caughtInCheckpoints...) {
		once(p.file, p.old, p.fault)
	}
	for _, p := range planted {
		once(p.file, p.old, p.id)
	}
	for _, f := range sourceFaults {
		once("internal/"+f.file, f.old, f.id)
	}
}
