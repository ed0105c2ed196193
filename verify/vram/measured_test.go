package vram

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

const mib = 1 << 20

func TestReadCSV(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		peaks map[string]float64
	}{
		"query with units":      {"timestamp, index, memory.used [MiB], memory.total [MiB]\n2026/11/21 10:00:00.000, 0, 100 MiB, 81559 MiB\n2026/11/21 10:00:01.000, 0, 300 MiB, 81559 MiB\n2026/11/21 10:00:02.000, 0, 200 MiB, 81559 MiB\n", map[string]float64{"0": 300}},
		"two devices":           {"index, memory.used [MiB]\n0, 5 MiB\n1, 9 MiB\n0, 7 MiB\n1, 8 MiB\n", map[string]float64{"0": 7, "1": 9}},
		"no units":              {"index, memory.used\n0, 5\n0, 6\n", map[string]float64{"0": 6}},
		"no header":             {"5 MiB\n17166 MiB\n", map[string]float64{"": 17166}},
		"no header, no units":   {"5\n6\n", map[string]float64{"": 6}},
		"processes":             {"pid, used_gpu_memory [MiB]\n12, 5 MiB\n12, 6 MiB\n", map[string]float64{"": 6}},
		"old name":              {"pid, used_memory [MiB]\n12, 5 MiB\n", map[string]float64{"": 5}},
		"repeated header":       {"memory.used [MiB]\n5 MiB\nmemory.used [MiB]\n6 MiB\n", map[string]float64{"": 6}},
		"CRLF, byte order mark": {"\ufeffmemory.used [MiB]\r\n5 MiB\r\n\r\n6 MiB\r\n", map[string]float64{"": 6}},
		"samples without one":   {"memory.used [MiB]\n[N/A]\n5 MiB\n[Not Supported]\n6 MiB\n", map[string]float64{"": 6}},
	} {
		m, err := ReadCSV(strings.NewReader(c.text), "x.csv")
		require.NoError(t, err, name)
		got := map[string]float64{}
		for _, d := range m.Devices {
			got[d.Index] = d.Peak / mib
		}
		require.Equal(t, c.peaks, got, name)
	}
	m, err := ReadCSV(strings.NewReader("memory.used [MiB]\n5 MiB\n"), "x.csv")
	require.NoError(t, err)
	require.Contains(t, m.Notes[0], "one sample")
}

// A sampler is stopped in the middle of a line: that line is left out, and one like it elsewhere is refused.
func TestCutCSV(t *testing.T) {
	const head = "index, memory.used [MiB], memory.total [MiB]\n0, 5 MiB, 9 MiB\n0, 7 MiB, 9 MiB\n"
	for cut := range len("0, 6 MiB, 9 MiB") {
		last := "0, 6 MiB, 9 MiB"[:cut]
		m, err := ReadCSV(strings.NewReader(head+last), "x.csv")
		require.NoError(t, err, "%q", last)
		require.Equal(t, 7.0*mib, m.Devices[0].Peak)
		if len(strings.Split(last, ",")) < 3 && strings.TrimSpace(last) != "" {
			require.Contains(t, strings.Join(m.Notes, " "), "line 4 was cut off")
			_, err = ReadCSV(strings.NewReader(head+last+"\n"), "x.csv")
			require.ErrorContains(t, err, "line 4", "%q", last)
			_, err = ReadCSV(strings.NewReader(head+last+"\n0, 6 MiB, 9 MiB"), "x.csv")
			require.ErrorContains(t, err, "line 4", "%q", last)
		}
	}
	_, err := ReadCSV(strings.NewReader("memory.used [MiB]\n5 M"), "x.csv")
	require.ErrorContains(t, err, `unit "M"`) // nothing else is there
}

func TestRefusedCSV(t *testing.T) {
	for name, c := range map[string]struct{ text, fragment string }{
		"empty":              {"", "no sample"},
		"header alone":       {"memory.used [MiB]\n", "no sample"},
		"no number at all":   {"memory.used [MiB]\n[N/A]\n", "reported no memory.used"},
		"negative":           {"memory.used [MiB]\n-5 MiB\n", "line 2: memory.used"},
		"NaN":                {"memory.used [MiB]\nNaN\n", "line 2"},
		"infinite":           {"memory.used [MiB]\nInf MiB\n", "line 2"},
		"another unit":       {"memory.used [MiB]\n5 GiB\n", `unit "GiB"`},
		"columns, no header": {"0, 5 MiB\n", "no header"},
		"columns missing":    {"index, memory.used [MiB]\n5 MiB\n", "1 columns, the header has 2"},
		"other header":       {"index, memory.used [MiB]\n0, 5 MiB\nmemory.used [MiB]\n", "second header"},
		"more than there is": {"memory.used [MiB], memory.total [MiB]\n6 MiB, 5 MiB\n", "more than memory.total"},
		"prose":              {"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "line 1"},
		"UTF-16":             {"\xff\xfem\x00e\x00", "UTF-16"},
		"NUL":                {"memory.used [MiB]\n5\x00\n", "UTF-16 or binary"},
		"long line":          {strings.Repeat("x", maxLine+1), "is longer than"},
	} {
		_, err := ReadCSV(strings.NewReader(c.text), "x.csv")
		require.ErrorContains(t, err, c.fragment, name)
		require.ErrorContains(t, err, "x.csv", name)
		require.True(t, format.IsMalformed(err), name)
	}
	var many strings.Builder
	many.WriteString("uuid, memory.used [MiB]\n")
	for i := range maxDevices + 1 {
		many.WriteString(strings.Repeat("u", 1+i/1000) + string(rune('0'+i%10)) + string(rune('a'+i/10%26)) + string(rune('A'+i/260)) + ", 1 MiB\n")
	}
	_, err := ReadCSV(strings.NewReader(many.String()), "x.csv")
	require.ErrorContains(t, err, "more than 1024 devices")
}

func FuzzReadCSV(f *testing.F) {
	f.Add("index, memory.used [MiB]\n0, 5 MiB\n")
	f.Add("5 MiB\n[N/A]\n")
	f.Add("\ufeffmemory.used [MiB], memory.total [MiB]\r\n5 MiB, 6 MiB\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ReadCSV(strings.NewReader(text), "x.csv")
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		require.Positive(t, m.Samples)
		require.NotEmpty(t, m.Devices)
		for _, d := range m.Devices {
			require.True(t, d.Peak >= 0 && d.Peak <= 1<<50)
			require.Positive(t, d.Line)
		}
	})
}
