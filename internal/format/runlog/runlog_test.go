package runlog_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/runlog"
	"plumbline/internal/format/tfevents"
)

// seen is a row with the names of its numbers.
type seen struct {
	form runlog.Form
	line int64
	at   map[string]float64
	text string
}

func readAll(t testing.TB, name string, data []byte, known ...string) ([]seen, *runlog.Reader, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, data, 0o644))
	r := &runlog.Reader{}
	if known != nil {
		r.Known = func(s string) bool {
			for _, k := range known {
				if k == s {
					return true
				}
			}
			return false
		}
	}
	var rows []seen
	err := r.Open(path, func(row *runlog.Row) error {
		s := seen{form: row.Form, line: row.Line, at: map[string]float64{}, text: string(row.Text)}
		for _, f := range row.Fields {
			s.at[r.Names[f.Name]] = f.Value
		}
		rows = append(rows, s)
		return nil
	})
	return rows, r, err
}

func TestForms(t *testing.T) {
	for _, c := range []struct {
		name, line string
		form       runlog.Form
		want       map[string]float64
	}{
		{"json", `{"step": 3, "loss": -0.5, "note": "x", "list": [1, {"a": 2}], "rewards": {"f": {"mean": 1.5}}}`, runlog.JSON, map[string]float64{"step": 3, "loss": -.5, "rewards/f/mean": 1.5}},
		{"verl file", `{"step":7,"data":{"actor/pg_loss":0.25}}`, runlog.JSON, map[string]float64{"step": 7, "actor/pg_loss": .25}},
		{"numbers as text", `{"loss": "0.5", "run": "2024-01-02", "ok": true}`, runlog.JSON, map[string]float64{"loss": .5, "ok": 1}},
		{"trl", `{'loss': 0.1, 'grad_norm': 2.5e-05, 'rewards/f/mean': np.float64(1.25), 'epoch': 0.01}`, runlog.Python, map[string]float64{"loss": .1, "grad_norm": 2.5e-5, "rewards/f/mean": 1.25, "epoch": .01}},
		{"trl behind a bar", ` 1%|▏         | 1/100 [00:01<02:03, 1.2s/it]{'loss': 0.1, 'reward': tensor(0.5, device='cuda:0')}`, runlog.Python, map[string]float64{"loss": .1, "reward": .5}},
		{"openrlhf", `2025-01-01 12:00:00 INFO ✨ Global step 12: {'policy_loss': -0.2, 'kl': 0.01}`, runlog.Python, map[string]float64{"step": 12, "policy_loss": -.2, "kl": .01}},
		{"openrlhf bar", `Train epoch [1/1]: 100%|███| 8/8 [00:10<00:00, policy_loss=-0.1, kl=0.02]`, runlog.Pairs, map[string]float64{"policy_loss": -.1, "kl": .02}},
		{"verl", `(TaskRunner pid=12) step:1 - actor/pg_loss:-0.1 - actor/grad_norm:np.float64(0.5) - timing_s/gen:3.1`, runlog.Verl, map[string]float64{"step": 1, "actor/pg_loss": -.1, "actor/grad_norm": .5, "timing_s/gen": 3.1}},
		{"iter", `iter 0: loss 0.1235 (main 0.1235, critic 0.0000), time 21747.97ms, mfu 1.00%, mem 10/20MB (max 30MB)`, runlog.Iter, map[string]float64{"iter": 0, "loss": .1235, "main": .1235, "critic": 0, "time": 21747.97}},
		{"micro 3", `[Micro 2] 3. Samples scored: mem=123MB, time=0.700s, rewards=0.5123±0.0141`, runlog.Micro, map[string]float64{"micro": 2, "phase": 3, "mem": 123, "time": .7, "rewards": .5123, "rewards_std": .0141}},
		{"micro 4", `[Micro 0] 4. Loss computed: mem=100 MB, time=1.500s, pg_loss=-0.100000, kl=0.001000, total=-0.099000`, runlog.Micro, map[string]float64{"micro": 0, "phase": 4, "mem": 100, "time": 1.5, "pg_loss": -.1, "kl": .001, "total": -.099}},
		{"placeholders", `[Micro 0] 4. Loss computed: mem=XXX MB, time=X.XXXs, pg_loss=X.XXXXXX`, runlog.Micro, map[string]float64{"micro": 0, "phase": 4}},
		{"deviation missing", `[Micro 0] 3. Samples scored: mem=1 MB, time=0.7s, rewards=0.5±`, runlog.Micro, map[string]float64{"rewards": .5}},
		{"line 5", `5. Optimizer step finished: mem=100 MB, time=2.500s total`, runlog.Micro, map[string]float64{"phase": 5, "mem": 100, "time": 2.5}},
		{"batch", `[Batch   50] Reward:  0.0001 | Loss:  3.2145 | Qwen_grad: 2.34e-05 | Mask_ratio: 0.8500`, runlog.Batch, map[string]float64{"batch": 50, "Reward": .0001, "Loss": 3.2145, "Qwen_grad": 2.34e-5, "Mask_ratio": .85}},
		{"epoch", `[Epoch 2] Val Accuracy: 0.5000 (50/100)`, runlog.Batch, map[string]float64{"epoch": 2, "val_accuracy": .5}},
		{"flow", `Gradient flow: min=0.000000, max=0.002000, mean=0.001000`, runlog.Flow, map[string]float64{"min": 0, "max": .002, "mean": .001}},
		{"step", `step 3/30 reward 0.5 clip 0.100/0.200 gnorm nan time_project_ms 0.5 of 12`, runlog.Steps, map[string]float64{"step": 3, "reward": .5, "clip": .1, "clip_2": .2, "gnorm": math.NaN(), "time_project_ms": .5, "time_project_ms_of": 12}},
		{"step ±", `step 3/30 loss 0.5 reward 0.1±0.2`, runlog.Steps, map[string]float64{"step": 3, "loss": .5, "reward": .1, "reward_std": .2}},
		{"pairs", `2024-05-06 12:30:45 INFO step=12 loss=0.5, kl: 0.01 lr = 1e-05`, runlog.Pairs, map[string]float64{"step": 12, "loss": .5, "kl": .01, "lr": 1e-5}},
		{"smi", `18500 MiB`, runlog.SMI, map[string]float64{"memory.used [MiB]": 18500}},
		{"smi table", `| N/A   30C    P0    55W / 300W |  15000MiB / 24576MiB |`, runlog.SMI, map[string]float64{"memory.used [MiB]": 15000}},
		{"text", `RuntimeError: expected scalar type Half but found Float`, runlog.Text, nil},
		{"prose", `  [n/a] loss: 4 batches are too few for a trend`, runlog.Text, nil},
		{"step before pairs", `[Step 12/100] loss: 0.5 | kl: 0.1`, runlog.Pairs, map[string]float64{"step": 12, "loss": .5, "kl": .1}},
		{"address", `INFO listening on http://127.0.0.1:8000 pid=12 port: 80`, runlog.Text, nil},
		{"escape", "\x1b[36m(pid=1)\x1b[0m step:2 - actor/pg_loss:\x1b[1m0.5", runlog.Verl, map[string]float64{"step": 2, "actor/pg_loss": .5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows, _, err := readAll(t, "x.log", []byte(c.line+"\n"), "loss", "kl", "lr", "step", "policy_loss", "reward", "memory.used [MiB]")
			require.NoError(t, err)
			require.Len(t, rows, 1)
			require.Equal(t, c.form.String(), rows[0].form.String())
			for k, v := range c.want {
				got, ok := rows[0].at[k]
				require.True(t, ok, "%s of %v", k, rows[0].at)
				if math.IsNaN(v) {
					require.True(t, math.IsNaN(got))
					continue
				}
				require.Equal(t, v, got, k)
			}
		})
	}
}

// Every spelling of a number that is not finite.
func TestNotFinite(t *testing.T) {
	for _, s := range []string{"NaN", "nan", "-NaN", `"NaN"`, `"nan"`, "np.float64(nan)", "tensor(nan)", "NAN"} {
		rows, _, err := readAll(t, "x.jsonl", []byte(fmt.Sprintf("{\"loss\": %s}\n", s)))
		require.NoError(t, err, s)
		require.True(t, math.IsNaN(rows[0].at["loss"]), s)
	}
	for s, sign := range map[string]int{"Infinity": 1, "-Infinity": -1, "inf": 1, "-inf": -1, `"Infinity"`: 1, "1e999": 1, "-1e999": -1} {
		rows, _, err := readAll(t, "x.jsonl", []byte(fmt.Sprintf("{\"loss\": %s}\n", s)))
		require.NoError(t, err, s)
		require.True(t, math.IsInf(rows[0].at["loss"], sign), s)
	}
}

// A number with zeros at its end was written to a fixed number of places, and one without has the digits that it needs.
func TestPlaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.log")
	require.NoError(t, os.WriteFile(path, []byte("step:1 - a:0.000 - b:0.0 - c:1.25 - d:np.float64(0.0) - e:-0.10 - f:1e-06 - g:0.000e+00 - actor/lr:3\n"), 0o644))
	var padded []bool
	var half []float64
	r := &runlog.Reader{}
	require.NoError(t, r.Open(path, func(row *runlog.Row) error {
		for _, f := range row.Fields[1:] {
			padded, half = append(padded, f.Padded), append(half, f.Half)
		}
		return nil
	}))
	require.Equal(t, []bool{true, false, false, false, true, false, false, false}, padded)
	require.InDeltaSlice(t, []float64{5e-4, .05, 5e-3, .05, 5e-3, 5e-7, 5e-4, .5}, half, 1e-12)
}

// rich and notebooks break a dictionary at their width; what is no such dictionary stays lines of text.
func TestDictionaryInManyLines(t *testing.T) {
	const log = "  13%|#3 | 51/400 [20:01<2:01:46, 20.94s/it]{'loss': '0.02196',         \n  'grad_norm': '3.3e-06', 'rewards/f/mean':   \n  '0.8279', 'kl': '1.098'}   \n" +
		"x = {'a': 1,\nRuntimeError: CUDA out of memory\n{'loss': 0.5, 'grad_norm': 1.0}\ny = {'b': 2,\n"
	rows, r, err := readAll(t, "a.log", []byte(log))
	require.NoError(t, err)
	require.EqualValues(t, 7, r.Lines)
	var forms []runlog.Form
	var at []int64
	for _, row := range rows {
		forms, at = append(forms, row.form), append(at, row.line)
	}
	require.Equal(t, []runlog.Form{runlog.Python, runlog.Text, runlog.Text, runlog.Python, runlog.Text}, forms)
	require.Equal(t, []int64{1, 4, 5, 6, 7}, at)
	require.Equal(t, map[string]float64{"loss": .02196, "grad_norm": 3.3e-6, "rewards/f/mean": .8279, "kl": 1.098}, rows[0].at)
	require.Equal(t, "RuntimeError: CUDA out of memory", rows[2].text)
}

func TestDocuments(t *testing.T) {
	rows, _, err := readAll(t, "trainer_state.json", []byte("{\n \"epoch\": 1,\n \"log_history\": [\n {\"step\": 1, \"loss\": 0.5},\n {\"step\": 2,\n \"loss\": NaN}\n ],\n \"max_steps\": 2\n}\n"))
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, .5, rows[0].at["loss"])
	require.True(t, math.IsNaN(rows[1].at["loss"]))

	rows, _, err = readAll(t, "history.json", []byte(`[{"_step": 0, "loss": 1.5}, {"_step": 1, "loss": "NaN"}]`))
	require.NoError(t, err)
	require.Len(t, rows, 2)

	rows, _, err = readAll(t, "frame.json", []byte("{\n\"loss\": {\"0\": 1.5, \"1\": 2.5}, \"kl\": {\"0\": 0.1, \"1\": 0.2}}"))
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, map[string]float64{"_step": 1, "loss": 2.5, "kl": .2}, rows[1].at)

	rows, _, err = readAll(t, "pandas.json", []byte(`{"loss":{"0":1.5,"3":null},"w":{"0":{"_type":"histogram","bins":[1]},"3":null},"kl":{"0":"x","3":0.2}}`))
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, map[string]float64{"_step": 0, "loss": 1.5}, rows[0].at)
	require.True(t, math.IsNaN(rows[1].at["loss"]))
	require.Equal(t, .2, rows[1].at["kl"])

	rows, _, err = readAll(t, "classes.jsonl", []byte("{\"loss\": {\"0\": 1.5}}\n{\"loss\": {\"0\": 2.5}}\n"))
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, map[string]float64{"loss/0": 2.5}, rows[1].at)

	for _, broken := range []string{`{"loss":{"0":1.5,"1":`, `{"loss":{"0":1.5},"kl":3}`, `{"loss":{"0":1.5,"x":2}}`, `{"loss":{"0":1.5}} 7`} {
		_, _, err = readAll(t, "broken.json", []byte(broken))
		require.Error(t, err, broken)
	}

	rows, r, err := readAll(t, "cut.json", []byte(`[{"_step": 0, "loss": 1.5}, {"_step": 1, "lo`))
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.True(t, r.Cut)
}

func TestTables(t *testing.T) {
	known := []string{"loss", "kl", "memory.used [MiB]"}
	for name, text := range map[string]string{"plain": "step,loss,kl\n1,0.5,0.1\n2,nan,\n", "quoted": "\"Step\",\"run, 1 - loss\",\"run, 1 - loss__MIN\",\"run, 1 - kl\"\n\"1\",\"0.5\",\"0.4\",\"0.1\"\n\"2\",\"NaN\",\"\",\"\"\n",
		"tabs": "step\tloss\tkl\n1\t0.5\t0.1\n2\tNaN\t\n"} {
		rows, _, err := readAll(t, "x.csv", []byte(text), known...)
		require.NoError(t, err, name)
		require.Len(t, rows, 3, name)
		require.Equal(t, map[string]float64{"step": 1, "loss": .5, "kl": .1}, rows[1].at, name)
		require.True(t, math.IsNaN(rows[2].at["loss"]), name)
		_, has := rows[2].at["kl"]
		require.False(t, has, "an empty cell says nothing: W&B writes one where a step has no value")
	}
	rows, _, err := readAll(t, "smi.csv", []byte("index, memory.used [MiB], utilization.gpu [%]\n0, 18500 MiB, 50 %\n"), known...)
	require.NoError(t, err)
	require.Equal(t, 18500., rows[1].at["memory.used [MiB]"])
}

// A dictionary in the first line is no header of a table, though some of its names are known.
func TestFirstLine(t *testing.T) {
	for _, line := range []string{`{'loss': '0.5', 'rewards/a/mean': 1, 'kl': 2}`, `loss: 0.5, kl: 0.1`, `loss=0.5, kl=0.1`} {
		rows, _, err := readAll(t, "x.log", []byte(line+"\n"))
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Equal(t, .5, rows[0].at["loss"], line)
	}
}

func TestEvents(t *testing.T) {
	var b []byte
	b = tfevents.Append(b, tfevents.Event{WallTime: 1, Version: tfevents.Version})
	for i := range 3 {
		b = tfevents.Append(b, tfevents.Event{WallTime: 2, Step: int64(i), Scalars: []tfevents.Scalar{{Tag: "train/loss", Value: float64(i)}}})
		b = tfevents.Append(b, tfevents.Event{WallTime: 2, Step: int64(i), Scalars: []tfevents.Scalar{{Tag: "kl", Value: .5}}})
	}
	rows, _, err := readAll(t, "anything", b)
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.Equal(t, map[string]float64{"step": 2, "train/loss": 2, "kl": .5}, rows[2].at)
	rows, r, err := readAll(t, "events.out.tfevents.1", b[:len(b)-3])
	require.NoError(t, err)
	require.True(t, r.Cut)
	require.Len(t, rows, 3)
	broken := bytes.Clone(b)
	broken[len(broken)/2] ^= 1
	_, _, err = readAll(t, "events.out.tfevents.1", broken)
	require.True(t, format.IsMalformed(err))
}

func TestHostile(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty":             {},
		"NUL":               []byte("step 1\x00\n"),
		"NUL later":         append(bytes.Repeat([]byte("loss=1\n"), 20000), 0, '\n'),
		"binary":            {0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0},
		"long line":         bytes.Repeat([]byte("x"), runlog.MaxLine+1<<19),
		"cut in the middle": []byte("{\"loss\": 1}\n{\"loss\": \n{\"loss\": 1}\n"),
		"deep":              []byte("{\"loss\": 1}\n" + strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100) + "\n{}\n"),
	} {
		_, _, err := readAll(t, "x.jsonl", data)
		require.True(t, format.IsMalformed(err), "%s: %v", name, err)
	}
	rows, r, err := readAll(t, "x.jsonl", []byte("{\"loss\": 1}\n{\"loss\": 2, \"k"))
	require.NoError(t, err, "the last line is cut where a process was killed")
	require.Len(t, rows, 1)
	require.True(t, r.Cut)

	rows, _, err = readAll(t, "latin.log", []byte("caf\xe9 loss=0.5\n"), "loss")
	require.NoError(t, err)
	require.Equal(t, .5, rows[0].at["loss"])

	_, r, err = readAll(t, "names.jsonl", []byte("{\"lo\\u001b[31mss\\u202e\": 1}\n"))
	require.NoError(t, err)
	require.NotContains(t, r.Names[0], "\x1b")
	require.NotContains(t, r.Names[0], "\u202e")

	var wide []byte
	for _, u := range utf16.Encode([]rune("loss=0.5\r\nkl=0.1\r\n")) {
		wide = append(wide, byte(u), byte(u>>8))
	}
	rows, _, err = readAll(t, "powershell.log", append([]byte{0xff, 0xfe}, wide...), "loss", "kl")
	require.NoError(t, err)
	require.Len(t, rows, 2)

	var many bytes.Buffer
	many.WriteByte('{')
	for i := range runlog.MaxNames + 1 {
		fmt.Fprintf(&many, "%q:1,", fmt.Sprint("n", i))
	}
	many.WriteString("\"z\":1}\n")
	_, _, err = readAll(t, "many.jsonl", many.Bytes())
	require.True(t, format.IsMalformed(err), "%v", err)
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{"{\"a\":1}\n", "step:1 - a:2\n", "iter 0: loss 1 (main 1, critic 0), time 1ms\n", "a,b\n1,2\n", "{'a': np.float64(1)}\n", "[Micro 0] 3. x: rewards=1±2\n", "[{\"a\":{\"b\":1}}]", "{\n\"a\":{\"0\":1}}", "step 1/2 a 1/2 b 3±4\n", "\xff\xfea\x00", "[Batch 1] A: 1 | B: 2\n", "| 1MiB |\n", "[Epoch 1] Val: 1\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &runlog.Reader{}
		n := 0
		_ = r.Read("fuzz", bytes.NewReader(data), func(row *runlog.Row) error {
			for _, field := range row.Fields {
				_ = r.Names[field.Name]
			}
			n++
			return nil
		})
		require.LessOrEqual(t, n, 2*len(data)+2)
	})
}
