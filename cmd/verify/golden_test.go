package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The golden values of the producer against ours.
func TestAgainstNumPy(t *testing.T) {
	dir := workspace(t)
	var m struct {
		Values struct {
			Defect       map[string]float64 `json:"defect"`
			MaxComponent map[string]float64 `json:"max_component"`
			Drift        map[string]float64 `json:"drift"`
			Flow         map[string]float64 `json:"grad_flow"`
		} `json:"values"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &m))
	run := func(args ...string) jsonForm {
		stdout, stderr, _ := verify(t, dir, append([]string{"projection", "--format", "json"}, args...)...)
		var r jsonForm
		require.NoError(t, json.Unmarshal([]byte(stdout), &r), stderr)
		return r
	}
	// Sums of 768 products in float64 against exact ones: 768·2⁻⁵³ of the sum of magnitudes, which is at most 1.
	const room = 768 * 0x1p-53
	for name, want := range m.Values.Defect {
		file := name + ".npy"
		if name == "q_bf16" {
			file = name + ".safetensors"
		}
		require.InDelta(t, want, run("--basis", file).find(t, "basis/orthonormal").Measured, 2*room, name)
	}
	for name, want := range m.Values.MaxComponent {
		require.InDelta(t, want, run("--basis", "q.npy", "--grad", name+".npy").find(t, "gradient/component").fact("max|Qᵀv|"), 101*room, name)
	}
	require.InDelta(t, m.Values.Drift["lora_held"], run("--basis", "q.npy", "--adapter", "lora_held", "--init", "lora_init").find(t, "adapter/drift").Measured, room)
	require.InDelta(t, m.Values.Drift["lora_leak"], run("--basis", "q.npy", "--adapter", "lora_leak", "--init", "lora_init").find(t, "adapter/drift").Measured, room)
	require.InDelta(t, m.Values.Drift["raw"], run("--basis", "q.npy", "--adapter", "lora_leak").find(t, "adapter/drift").Measured, 4*room)
	flow := m.Values.Flow
	require.Contains(t, run("--basis", "q.npy", "--grad", "grads.safetensors").Lines,
		fmt.Sprintf("Gradient flow: min=%.6f, max=%.6f, mean=%.6f", flow["min"], flow["max"], flow["mean"]))
}

type jsonForm struct {
	Exit    int
	Results []jsonRow
	Lines   []string
}

type jsonRow struct {
	Check    string
	Measured float64
	Facts    []struct {
		Name  string
		Value float64
	}
}

func (r jsonForm) find(t *testing.T, id string) jsonRow {
	t.Helper()
	for _, row := range r.Results {
		if row.Check == id {
			return row
		}
	}
	t.Fatalf("no result of %s", id)
	return jsonRow{}
}

func (r jsonRow) fact(name string) float64 {
	for _, f := range r.Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return math.NaN()
}
