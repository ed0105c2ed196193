package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/rundir"
	"plumbline/reference/rl"
)

// shieldState is shield.json of a checkpoint: the basis that the run is shielded by, and the sums of the epoch under way.
type shieldState struct {
	Basis  string  `json:"basis"` // fingerprint, "" without one
	Steps  int     `json:"steps"`
	Reward float64 `json:"reward"`
	KL     float64 `json:"kl"`
}

// initDir is the folder of the adapter before training, W_init, in the folder of a run.
const initDir = "lora_init"

// settle settles W_init.
func (r *shieldedRun) settle() error {
	dir := filepath.Join(r.env.Run.Path(), initDir)
	if err := format.OwnDir(dir); err != nil {
		return err
	}
	if err := r.writeInit(dir); err != nil {
		return err
	}
	for _, p := range r.params {
		r.init = append(r.init, slices.Clone(p.Data))
	}
	if err := r.env.Policy.Restore(dir); err != nil { // what lies there is what verify projection takes for W_init
		return err
	}
	for i, p := range r.params {
		if r.env.From == nil && !slices.Equal(r.init[i], p.Data) {
			r.warned.warn(r.env.Env, "init", "the run begins with the adapter that was in %s, which is not that of this configuration and seed", dir)
		}
		copy(r.init[i], p.Data)
	}
	return nil
}

// restoreShield reads what shieldFiles wrote.
func (r *shieldedRun) restoreShield(dir string) (err error) {
	basis := r.ended.Basis
	if r.ended, err = readShieldState(dir); err != nil {
		return err
	}
	if r.ended.Basis != basis {
		return unfit("%s was shielded by another basis than this one", dir)
	}
	return nil
}

func readShieldState(dir string) (s shieldState, err error) {
	path := filepath.Join(dir, shieldFile)
	text, err := format.ReadFile(path, 1<<16)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, format.Malformed(path, "", "%v", err)
	}
	return s, nil
}

const shieldFile = "shield.json"

// shieldFiles are those of a checkpoint beside the adapter, the optimiser and where the run is.
func (r *shieldedRun) shieldFiles() ([]rundir.File, error) {
	text, err := json.MarshalIndent(r.ended, "", " ")
	if err != nil {
		return nil, err
	}
	return []rundir.File{{Name: shieldFile, Write: func(w io.Writer) error { _, err := w.Write(append(text, '\n')); return err }}}, nil
}

// writeInit writes the adapter before training into a folder, adapter_config.json and adapter_model.safetensors as PEFT reads them,
// with meta.json, unless one lies there already.
func (r *shieldedRun) writeInit(dir string) error {
	path, err := format.Own(dir, "adapter_model.safetensors")
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.env.From != nil {
		return fmt.Errorf("%s, the adapter before training, is gone: what the run has changed cannot be told: %w", dir, err)
	}
	files, err := r.env.Policy.Files()
	if err != nil {
		return err
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name, "adapter_") {
			continue
		}
		if err := format.WriteOwn(dir, f.Name, f.Write); err != nil {
			return err
		}
	}
	meta, err := json.MarshalIndent(map[string]any{"dataset": r.Dataset, "model": r.Model, "int8": r.Int8, "lora_r": r.LoRA.R, "base_fingerprint": r.env.Policy.Fingerprint()}, "", " ")
	if err != nil {
		return err
	}
	fmt.Fprintf(r.env.Out, "the adapter before training is in %s\n", dir)
	return format.WriteOwn(dir, "meta.json", func(w io.Writer) error { _, err := w.Write(append(meta, '\n')); return err })
}

// report prints the line of a step and keeps three answers.
func (r *shieldedRun) report(step, steps int, a *answers, last []rl.Metric) error {
	m := func(name string) float64 { return metric(last, name) }
	fmt.Fprintf(r.env.Out, "step %d/%d loss %.6f loss_pg %.6f loss_kl %.6f kl %.6f ratio_mean %.6f reward_mean %.4f grad_norm %.4f time_project_ms %.2f of %.0f\n", step, steps,
		m("loss"), m("loss_pg"), m("loss_kl"), m("kl"), m("ratio_mean"), m("reward_mean"), m("grad_norm_raw"), m("time_project_ms"), m("time_step_ms"))
	for i := range min(3, len(a.texts)) {
		if err := r.sample(rundir.Field{Key: "step", Value: step}, rundir.Field{Key: "prompt", Value: a.prompts[i]},
			rundir.Field{Key: "response", Value: a.texts[i]}, rundir.Field{Key: "reward", Value: a.scores[i]}); err != nil {
			return err
		}
	}
	return nil
}

// line is a line of metrics.jsonl: one for every step.
func (r *shieldedRun) line(step, epoch int, a *answers, metrics []rl.Metric) []rundir.Field {
	fields := []rundir.Field{{Key: "step", Value: step}, {Key: "epoch", Value: epoch}}
	for _, m := range metrics {
		fields = append(fields, rundir.Field{Key: m.Name, Value: m.Value})
	}
	return append(fields, rundir.Field{Key: "tokens", Value: a.tokens}, rundir.Field{Key: "unfinished", Value: a.unended}, rundir.Field{Key: "empty", Value: a.no},
		rundir.Field{Key: "prompts_cut", Value: a.cut})
}
