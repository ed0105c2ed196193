//go:build slow && linux

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel/lora"
	"plumbline/internal/assets"
	"plumbline/internal/bind"
	"plumbline/internal/format/hf"
	"plumbline/internal/pretrained"
	"plumbline/internal/train"
	"plumbline/reference/optim"
	"plumbline/verify/checkpoint"
	"plumbline/verify/vram"
)

// hollow writes a model of float32 weights that are all 0 in a file that takes no room on the disk, and returns how many they are.
func hollow(t testing.TB, dir, config string) (weights int64) {
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644))
	c, err := hf.ReadConfig(dir)
	require.NoError(t, err)
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header := map[string]entry{}
	for _, w := range c.Tensors() {
		n := int64(1)
		for _, d := range w.Shape {
			n *= int64(d)
		}
		header[w.Name] = entry{"F32", w.Shape, [2]int64{4 * weights, 4 * (weights + n)}}
		weights += n
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	text = append(text, bytes.Repeat([]byte(" "), (8-len(text)%8)%8)...)
	path := filepath.Join(dir, "model.safetensors")
	require.NoError(t, os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0o644))
	require.NoError(t, os.Truncate(path, int64(8+len(text))+4*weights))
	return weights
}

// openOnly makes the test binary open a model, read some rows and end: the environment names the folder.
const openOnly = "PLUMBLINE_TEST_OPEN_ONLY"

func TestOpenOnly(t *testing.T) {
	dir := os.Getenv(openOnly)
	if dir == "" {
		t.Skip("runs in a process of its own: see TestMemoryOfWeights")
	}
	s, err := pretrained.Open(dir, pretrained.Options{NoTokenizer: true})
	require.NoError(t, err)
	defer s.Close()
	for _, tensor := range s.Config.Tensors() { // rows at a time, as a program that quantises them does
		w, err := s.Weight(tensor.Name)
		require.NoError(t, err)
		rows := make([]float32, min(16, w.Rows())*w.Width())
		for first := 0; first < w.Rows(); first += 16 {
			rows = rows[:min(16, w.Rows()-first)*w.Width()]
			require.NoError(t, w.ReadRows32(rows, first))
		}
	}
	peak := highWater(t)
	t.Logf("opened and read by rows: %d MB", peak/1e6)
	require.Less(t, peak, int64(100e6))
}

// highWater is the largest memory of this process so far: Maxrss counts that of the process that started it, too.
func highWater(t *testing.T) int64 {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(status), "VmHWM:")
	require.True(t, ok)
	var kilobytes int64
	_, err = fmt.Sscan(text, &kilobytes)
	require.NoError(t, err)
	return kilobytes * 1024
}

// stepsOnly makes the test binary take two steps on the kernels and end: the environment names the folder, and stepsMode the mode.
const (
	stepsOnly = "PLUMBLINE_TEST_STEPS_ONLY"
	stepsMode = "PLUMBLINE_TEST_STEPS_MODE"
)

const stepRows, stepTime = 4, 256

func TestStepsOnly(t *testing.T) {
	dir := os.Getenv(stepsOnly)
	if dir == "" {
		t.Skip("runs in a process of its own: see TestMemoryOfSteps")
	}
	name, keep, _ := strings.Cut(os.Getenv(stepsMode), " ")
	mode, err := lora.ParseMode(name)
	require.NoError(t, err)
	base, err := bind.OpenBase(dir, 1)
	require.NoError(t, err)
	defer base.Close()
	adapter, err := bind.NewAdapter(base.Reference(), 16, 16, []string{"q_proj", "v_proj"}, 1)
	require.NoError(t, err)
	tighten(base.Config)
	p, err := bind.NewAccelerated(base, mode, bind.Options{Adapter: adapter, Checkpointing: keep != ""})
	require.NoError(t, err)
	b := train.Batch{Rows: stepRows, Prompt: 1, Response: stepTime - 1, IDs: make([]int, stepRows*stepTime)}
	for i := range b.IDs {
		b.IDs[i] = i * 7919 % base.Config.Vocab
	}
	optimizer := train.NewAdam(p.Params(), false)
	for step := range 2 {
		require.NoError(t, p.Accumulate(b, func(s train.Scores) (train.Slopes, error) {
			d := make([]float64, len(s.LogProbs))
			for i := range d {
				d[i] = -1 / float64(len(d))
			}
			return train.Slopes{LogProbs: d}, nil
		}))
		_, err := optimizer.Step(train.Update{Step: step, Rule: optim.Adam{LR: 1e-4, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}, MaxNorm: 1})
		require.NoError(t, err)
	}
	fmt.Printf("peak %d\n", highWater(t))
}

// TestMemoryOfSteps demands that two steps on the kernels take what verify vram plans, within a tenth: SmolLM2-135M's geometry, with activations
// kept and computed again.
func TestMemoryOfSteps(t *testing.T) {
	dir := t.TempDir()
	hollow(t, dir, `{"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
		"vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000, "tie_word_embeddings": true, "eos_token_id": 0}`)
	text, err := assets.Tiny.ReadFile("tiny/tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o644))
	m, err := checkpoint.FindModel(dir)
	require.NoError(t, err)
	for _, mode := range []string{"w8a16", "w8a16 again", "w8a8", "f32"} {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestStepsOnly$")
		cmd.Env = append(os.Environ(), stepsOnly+"="+dir, stepsMode+"="+mode, "GOGC=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		_, after, ok := strings.Cut(string(out), "\npeak ")
		require.True(t, ok, string(out))
		var peak float64
		_, err = fmt.Sscan(after, &peak)
		require.NoError(t, err)
		name, _, again := strings.Cut(mode, " ")
		s := vram.Setup{Model: m, Stack: vram.Plumbline, Policy: "accel:" + name, Rank: 16, Targets: []string{"q_proj", "v_proj"}, Batch: stepRows, Seq: stepTime, Checkpointing: again}
		require.NoError(t, s.Validate())
		planned := vram.New(s).Total(vram.Update).Bytes
		t.Logf("%s: %.0f MB measured, %.0f MB planned: %.3f", mode, peak/1e6, planned/1e6, planned/peak)
		require.InEpsilon(t, peak, planned, 0.1, mode)
	}
}

// A model of 1 GB of float32 weights is opened, and all its rows are read, in 100 MB. A sample of it takes less than 1.2 times what
// its weights take in float64.
func TestMemoryOfWeights(t *testing.T) {
	dir := t.TempDir()
	weights := hollow(t, dir, `{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 5, "num_attention_heads": 16, "intermediate_size": 5632,
		"vocab_size": 8000, "max_position_embeddings": 64, "eos_token_id": 1}`)
	require.Greater(t, 4*weights, int64(1e9))

	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestOpenOnly$")
	cmd.Env = append(os.Environ(), openOnly+"="+dir, "GOGC=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	t.Log(string(out))

	cmd = exec.Command(binaryPath, "sample", "--model", dir, "--prompt-ids", "3,4,5", "--ids", "--tokens", "2")
	cmd.Env = append(os.Environ(), "GOGC=")
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss * 1024
	t.Logf("sampled: %d MB, the weights in float64 are %d MB", peak/1e6, 8*weights/1e6)
	require.Less(t, float64(peak), 1.2*8*float64(weights))
}
