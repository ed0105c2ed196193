package convention

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

func TestReadOptions(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, framework, want string }{
		"flat.json":      {`{"clip.low": 0.1, "adv.ddof": 0, "clip.dual": null, "gradient_accumulation_steps": 4}`, "", "adv.ddof=0 clip.low=0.1 clip.dual=none | gradient_accumulation_steps=4"},
		"nested.json":    {`{"clip": {"low": 0.1, "high": 0.2}, "kl": {"kind": "k3"}}`, "", "kl.kind=k3 clip.low=0.1 clip.high=0.2 |"},
		"options.json":   {`{"options": {"clip": {"low": 0.1}}, "reward_weights": [1, 0.5]}`, "", "clip.low=0.1 | reward_weights=1,0.5"},
		"native.json":    {`{"framework": "trl-grpo", "loss_type": "bnpo", "clip.low": 0.1}`, "trl-grpo", "loss.kind=ppo clip.low=0.1 agg.kind=token agg.denominator=micro agg.div_ga=true |"},
		"tree.json":      {`{"framework": "verl", "actor_rollout_ref": {"actor": {"clip_ratio_low": 0.3}}}`, "verl", "clip.low=0.3 |"},
		"lines":          {"# ours\n\nclip.low = 0.1\nclip.high=0.28   # DAPO\nwhiten.remask = true\nclip.dual = none\nkl.kind = k1\nreward.clip_range = -5,5\n", "", "whiten.remask=true reward.clip_range=-5,5 kl.kind=k1 clip.low=0.1 clip.high=0.28 clip.dual=none |"},
		"lines.crlf":     {"clip.low = 1e-1\r\nreward_weights = [1, 0.5]\r\nscalars_scope = \"micro_batch\"\r\n", "", "clip.low=0.1 | reward_weights=1,0.5 scalars_scope=micro_batch"},
		"lines.trl":      {"framework = trl-rloo\nbeta = 0.1\nreward_clip_range = null\n", "trl-rloo", "reward.clip=none reward.clip_range=none kl.beta=0.1 kl.place=sequence_reward_before_baseline |"},
		"unfinished.txt": {"clip.low = 0.1", "", "clip.low=0.1 |"},
		"empty":          {"", "", "|"},
		"empty.json":     {"{}", "", "|"},
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
		list, framework, err := ReadOptions(file)
		require.NoError(t, err, name)
		require.Equal(t, c.framework, framework, name)
		d, err := Declare(framework, "", list, name)
		require.NoError(t, err, name)
		require.Equal(t, c.want, strings.TrimSpace(valuesOf(d.Set)+" | "+factsOf(d.Set)), name)
	}
}

func TestReadOptionsErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"clip.lo": 1}`, `no option "clip.lo"; did you mean "clip.low"?`},
		{`{"clip": {"lo": 1}}`, `no option "clip.lo"`},
		{`{"loss_type": "grpo"}`, `loss_type is no option but a name of trl-grpo; with framework = trl-grpo the file is read as such`},
		{`{"gradient_accumulation_step": 2}`, `did you mean "gradient_accumulation_steps"?`},
		{`{"clip.low": "much"}`, `clip.low: "much" is no legal value; want a number ≥ 0, or none`},
		{`{"clip.low": 0.1, "clip": {"low": 0.1}}`, `clip.low is given twice`},
		{`{"clip.low": 0.1, "clip.low": 0.1}`, `byte `},
		{`{"clip.low": 0.1} {}`, `byte `},
		{`{"clip.low": 0.1`, `byte `},
		{`{"clip.low": NaN}`, `byte `},
		{`{"framework": 3}`, `framework: 3 is no name`},
		{`{"framework": "trl", "loss_type": "x"}`, `loss_type=x is no legal value of trl-grpo`},
		{`{"gradient_accumulation_steps": -1}`, `want a whole number ≥ 0`},
		{"clip.low = 0.1\nclip.low = 0.2", `clip.low is given twice`},
		{"clip.low 0.1", `line 1: "clip.low 0.1" is no line of the form name = value`},
		{"\nclip:\n  low: 0.1", `line 2: "clip:" is no line of the form name = value (YAML is read from a file named .yaml)`},
		{"clip.low = ", `line 1: clip.low has the value ""`},
		{"clip.low = [1,", `line 1: clip.low has the value "[1,"`},
		{`clip.low = "0.1`, `line 1`},
		{"= 3", `line 1`},
		{"clip.low = 0.1\x00", "NUL"},
		{"clip.low = \xff", "UTF-8"},
		{strings.Repeat("# long\n", 200_000), "at most 1048576 bytes"},
		{strings.Repeat(`{"a":`, 100), `byte `},
	} {
		_, _, err := parseOptions("a.cfg", []byte(c.text))
		require.ErrorContains(t, err, c.want, "%.80q", c.text)
		require.ErrorContains(t, err, "a.cfg", "%.80q", c.text)
	}
	_, _, err := ReadOptions(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = ReadOptions(t.TempDir())
	require.True(t, format.IsMalformed(err))
}

func TestOptionsOf(t *testing.T) {
	list, framework, err := OptionsOf(map[string]any{"framework": "trl", "clip": map[string]any{"low": 0.1}, "beta": 0.1})
	require.NoError(t, err)
	require.Equal(t, "trl", framework)
	require.Equal(t, []NameValue{{"beta", 0.1}, {"clip.low", 0.1}}, list)
	_, _, err = OptionsOf(map[string]any{"clip": map[string]any{"lo": 0.1}})
	require.ErrorContains(t, err, "clip.low")
}

// No file makes the reader panic, and what it accepts can be declared.
func FuzzReadOptions(f *testing.F) {
	for _, text := range []string{`{"clip":{"low":0.1}}`, "clip.low = 0.1\n", `{"framework":"verl","clip_ratio":0.2,"rollout_is_threshold":"0.5_5"}`, `{"framework":"trl","epsilon":1e999}`,
		`{"framework":"openrlhf","reward.clip_range":[-1,1],"eps_clip_low_high":[0.1,0.2]}`, "framework = trl-ppo\nkl_coef=0\n", `{"options":{"a":{}}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, framework, err := parseOptions("f", data)
		if err != nil {
			return
		}
		d, err := Declare(framework, "", list, "f")
		if err != nil {
			t.Fatalf("%q was read, and yet: %v", data, err)
		}
		if framework == "" && (len(d.Unknown) > 0 || len(d.Ambiguous) > 0) {
			t.Fatalf("%q was read without a framework, and yet not understood: %v %v", data, d.Unknown, d.Ambiguous)
		}
		for _, name := range d.Set.Names() {
			o, err := Find(name)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := o.Parse(d.Set.Value(name).String()); err != nil || v != d.Set.Value(name) || v.Kind() == Unknown {
				t.Fatalf("%q sets %s to what is no value", data, name)
			}
		}
	})
}
