package config

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type sample struct {
	name, dir, device string
	lr, top           float64
	steps             int
	seed              uint64
	adam8             bool
	targets           []string
}

func settings(v *sample) *Settings {
	*v = sample{name: "tiny", dir: "out/${model.name}", device: "cpu", lr: 2e-6, steps: 100, seed: 42, adam8: true, targets: []string{"q_proj"}}
	s := NewSettings()
	s.Text("model.name", &v.name, "the model")
	s.Float("ppo.learning_rate", &v.lr, 0, math.Inf(1), "of the optimiser")
	s.Bool("ppo.use_8bit_adam", &v.adam8, "quantised moments")
	s.Int("training.total_steps", &v.steps, 0, 1<<30, "steps")
	s.Uint64("training.seed", &v.seed, "of everything random")
	s.Text("training.output_dir", &v.dir, "where it goes")
	s.Choice("training.device", &v.device, []string{"cpu", "cuda"}, "where it runs")
	s.Texts("lora.targets", &v.targets, "the layers")
	s.Float("generation.top_p", &v.top, 0, 1, "nucleus")
	return s
}

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	write("configs/base.yaml", "model:\n  name: base\nppo:\n  learning_rate: 1.0e-3\n  use_8bit_adam: false\n")
	file := write("configs/c.yaml", "defaults:\n  - base.yaml\nppo: {learning_rate: 5e-5}\nlora:\n  targets: [q_proj, \"v_proj\"]\n")
	var v sample
	s := settings(&v)
	require.NoError(t, s.ReadFile(file))
	require.NoError(t, s.Environment("TRAIN", []string{"TRAIN_TRAINING__SEED=7", "PATH=/bin"}))
	require.NoError(t, s.Override("training.total_steps=3"))
	require.NoError(t, s.Override("--ppo.learning_rate=0.5"))
	require.NoError(t, s.Resolve())
	require.Equal(t, sample{name: "base", dir: "out/base", device: "cpu", lr: .5, steps: 3, seed: 7, adam8: false, targets: []string{"q_proj", "v_proj"}}, v)
	require.Equal(t, []string{"model.name=base", "ppo.learning_rate=0.5", "ppo.use_8bit_adam=false", "training.total_steps=3", "training.seed=7",
		"training.output_dir=out/base", "lora.targets=[q_proj v_proj]"}, s.Changed())
	require.Empty(t, s.Warnings, "0.5 was typed by its key")

	var again sample
	r := settings(&again)
	require.NoError(t, r.ReadFile(write("effective.yaml", string(s.YAML()))))
	require.NoError(t, r.Resolve())
	require.Empty(t, r.Warnings)
	require.Equal(t, v, again)
	require.Equal(t, s.SHA256(), r.SHA256())
	require.Equal(t, s.JSON(), r.JSON())
	require.NoError(t, r.Override("training.total_steps=4"))
	require.NoError(t, r.Resolve())
	require.NotEqual(t, s.SHA256(), r.SHA256())
	require.Equal(t, s.SHA256("training.total_steps"), r.SHA256("training.total_steps"))

	var w sample
	s = settings(&w)
	require.NoError(t, s.ReadFile(write("warn.yaml", "ppo:\n  learning_rate: 1e-5\n")))
	require.NoError(t, s.Resolve())
	require.Len(t, s.Warnings, 1)
	require.Contains(t, s.Warnings[0], "warn.yaml:2:18: ppo.learning_rate: PyYAML reads 1e-5 as text, not as a number: write 1.0e-05")
}

func TestSettingsRefuse(t *testing.T) {
	deep := strings.Repeat("{a: ", 70) + "1" + strings.Repeat("}", 70)
	for text, want := range map[string]string{
		"training: {total_steps: 1.5}":                      "c.yaml:1:25: training.total_steps: want an integer, not \"1.5\"",
		"training: {total_steps: 010}":                      "write 10 or 0o10",
		"training: {total_steps: 1_000}":                    "want an integer",
		"training: {total_steps: -1}":                       "want an integer from 0",
		"training: {total_steps: '3'}":                      "want an integer",
		"training: {total_steps: [x]}":                      "want one value, not a list",
		"training: {total_steps: 99999999999999999999}":     "want an integer from",
		"training: {total_steps: null}":                     "has no value",
		"training: {total_steps: }":                         "has no value",
		"training: {seed: -1}":                              "want an integer from 0 to 2^64-1",
		"ppo: {use_8bit_adam: yes}":                         "want true or false",
		"ppo: {use_8bit_adam: off}":                         "want true or false",
		"ppo: {use_8bit_adam: True}":                        "want true or false",
		"ppo: {learning_rate: .nan}":                        "want a number from",
		"ppo: {learning_rate: 1_0.5}":                       "want a number",
		"ppo: {learning_rate: '1e-5'}":                      "want a number",
		"generation: {top_p: .inf}":                         "want a number from 0 to 1",
		"model: {name: 3}":                                  "want text: quote it",
		"model: {name: true}":                               "want text: quote it",
		"model: {name: {x: 1}}":                             "unknown key \"model.name.x\"; did you mean model.name?",
		"training: {devcie: cpu}":                           "unknown key \"training.devcie\"; did you mean training.device?",
		"Training: {device: cpu}":                           "did you mean training.device?",
		"learning_rate: 1.0":                                "did you mean ppo.learning_rate?",
		"training: {device: gpu}":                           "want one of cpu, cuda",
		"training: {device: cpu}\ntraining: {device: cuda}": "given twice",
		"training: {device: cpu, device: cuda}":             "given twice",
		"training: {device: cpu}\n---\na: 1":                "a second document",
		"model: &a {name: x}":                               "anchors",
		"model: {name: *a}":                                 "no YAML",
		"model: {<<: {name: x}}":                            "merge keys",
		"model: {name: !!python/object:os.system x}":        "the tag",
		"model: !x {name: x}":                               "the tag",
		"lora: {targets: q_proj}":                           "want a list",
		"lora: {targets: [1]}":                              "want a list of texts",
		"training: {output_dir: '${training.output_dir}'}":  "leads back to itself",
		"model: {name: '${training.output_dir}'}":           "leads back to itself",
		"model: {name: '${nothing}'}":                       "unknown key \"nothing\"",
		"model: {name: '${lora.targets}'}":                  "is a list",
		"training: {total_steps: '${model.name}'}":          "want an integer",
		"[1, 2]":                             "want a mapping",
		"":                                   "is empty",
		"a: \x00":                            "NUL byte",
		"a: \xff":                            "UTF-8",
		deep:                                 "in each other",
		"defaults: [a.yaml, b.yaml]":         "names one file",
		"defaults: c.yaml":                   "defaults lead back to c.yaml",
		"defaults: gone.yaml":                "gone.yaml: file does not exist",
		strings.Repeat("#", maxBytes) + "\n": "at most",
	} {
		var v sample
		s := settings(&v)
		s.Open = func(name string) ([]byte, error) {
			if name != "c.yaml" {
				return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
			}
			return []byte(text), nil
		}
		err := s.ReadFile("c.yaml")
		if err == nil {
			err = s.Resolve()
		}
		require.ErrorContains(t, err, want, "%.100q", text)
	}
	for assignment, want := range map[string]string{
		"+ppo.x=1": "neither added nor taken away", "~ppo.learning_rate=": "neither added", "ppo.learning_rate": "lacks its value", "ppo.lr": "no key=value",
		"ppo.lerning_rate=1": "did you mean ppo.learning_rate?", "ppo.use_8bit_adam=True": "want true or false", "training.total_steps=": "has no value",
	} {
		var v sample
		s := settings(&v)
		err := s.Override(assignment)
		if err == nil {
			err = s.Resolve()
		}
		require.ErrorContains(t, err, want, assignment)
	}
	var v sample
	require.ErrorContains(t, settings(&v).Environment("TRAIN", []string{"TRAIN_SEDE=1"}), "environment variable TRAIN_SEDE")
}

func TestOverridesAreTyped(t *testing.T) {
	var v sample
	s := settings(&v)
	for _, a := range []string{"model.name=1e5", "ppo.learning_rate=1e-5", "lora.targets=a,b", "training.output_dir="} {
		require.NoError(t, s.Override(a))
	}
	require.NoError(t, s.Resolve())
	require.Equal(t, "1e5", v.name)
	require.Equal(t, 1e-5, v.lr)
	require.Equal(t, []string{"a", "b"}, v.targets)
	require.Equal(t, "", v.dir)
}

// TestYAMLFloat: what is written is read back to the same bits, by us and by what YAML 1.1 calls a float.
func TestYAMLFloat(t *testing.T) {
	for _, x := range []float64{0, 1, -1, .1, 2e-6, 1e-300, 1e300, 123456789, 5e-324, math.MaxFloat64, 1e21} {
		text := yamlFloat(x)
		require.Equal(t, x, scalar(text), text)
		require.Regexp(t, `^[-+]?([0-9][0-9_]*)\.[0-9_]*([eE][-+][0-9]+)?$`, text, fmt.Sprint(x))
	}
}

func FuzzSettings(f *testing.F) {
	f.Add("model: {name: x}\nppo:\n  learning_rate: 1.0e-5\n")
	f.Add("defaults: [a]\nlora: {targets: [x, 'y']}\ntraining: {output_dir: ${model.name}}")
	f.Fuzz(func(t *testing.T, text string) {
		var v, again sample
		s := settings(&v)
		s.Open = func(name string) ([]byte, error) {
			if name != "c" {
				return nil, fs.ErrNotExist
			}
			return []byte(text), nil
		}
		if s.ReadFile("c") != nil || s.Resolve() != nil {
			return
		}
		r := settings(&again)
		r.Open = func(string) ([]byte, error) { return s.YAML(), nil }
		if err := r.ReadFile("c"); err != nil {
			t.Fatalf("%v\n%s", err, s.YAML())
		}
		if err := r.Resolve(); err != nil && !strings.Contains(err.Error(), "${") {
			t.Fatalf("%v\n%s", err, s.YAML())
		}
	})
}
