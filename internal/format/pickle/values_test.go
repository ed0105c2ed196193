package pickle

import (
	"encoding/binary"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The whole numbers of a schedule, and the bytes of tensors, are those that transformers' Trainer saved after two steps
// (golden/checkpoint/trl_sft_lora: AdamW, weight decay 0, step 2).
func TestValues(t *testing.T) {
	const dir = "../../../golden/checkpoint/trl_sft_lora/checkpoint-2/"
	numbers := map[string]int64{}
	for _, n := range scan(t, dir+"scheduler.pt").Numbers {
		numbers[n.Name] = n.Value
	}
	require.Equal(t, int64(2), numbers["last_epoch"])
	require.Equal(t, int64(3), numbers["_step_count"])

	s := scan(t, dir+"optimizer.pt")
	text, err := os.ReadFile(dir + "optimizer.pt")
	require.NoError(t, err)
	storages := map[string]Storage{}
	for _, st := range s.Storages {
		require.Positive(t, st.At)
		storages[st.Key] = st
	}
	steps, seconds := 0, 0
	for _, x := range s.Tensors {
		at := storages[x.Storage].At + 4*x.Offset
		require.Equal(t, "float32", x.DType)
		switch {
		case strings.HasSuffix(x.Name, ".step"):
			steps++
			require.Equal(t, float32(2), math.Float32frombits(binary.LittleEndian.Uint32(text[at:])), x.Name)
		case strings.HasSuffix(x.Name, ".exp_avg_sq"):
			seconds++
			for i := range x.Len() {
				v := math.Float32frombits(binary.LittleEndian.Uint32(text[at+4*i:]))
				require.False(t, v < 0 || v > 1, "%s[%d] = %g is no mean of squares of clipped gradients", x.Name, i, v)
			}
		}
	}
	require.Equal(t, [2]int{8, 8}, [2]int{steps, seconds})
}

// A dict of any length costs no more than the numbers that are kept of it.
func TestNumbersAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("\x80\x02}(")
	for i := range 3 * maxNumbers {
		text.WriteString("X\x01\x00\x00\x00aK\x01")
		if i%1000 == 999 { // as Python batches them
			text.WriteString("u(")
		}
	}
	path := t.TempDir() + "/data.pt"
	require.NoError(t, os.WriteFile(path, []byte(text.String()+"u."), 0o600))
	s := scan(t, path)
	require.Len(t, s.Numbers, maxNumbers)
	require.Equal(t, Number{"a", 1}, s.Numbers[0])
}

// Learning rates and betas are those of the run, to 48 bits: linear decay to 0 over the two steps.
func TestReals(t *testing.T) {
	const dir = "../../../golden/checkpoint/trl_sft_lora/checkpoint-2/"
	for file, want := range map[string]map[string]float64{
		"scheduler.pt": {"base_lrs.0": 0.01, "base_lrs.1": 0.01, "_last_lr.0": 0, "_last_lr.1": 0},
		"optimizer.pt": {"param_groups.0.lr": 0, "param_groups.0.betas.0": 0.9, "param_groups.0.betas.1": 0.999, "param_groups.1.eps": 1e-8, "param_groups.1.initial_lr": 0.01},
	} {
		got := map[string]float64{}
		for _, r := range scan(t, dir+file).Reals {
			got[r.Name] = r.Value
		}
		for name, v := range want {
			g, there := got[name]
			require.True(t, there, name)
			require.InDelta(t, v, g, v*0x1p-48, name)
		}
	}
}
