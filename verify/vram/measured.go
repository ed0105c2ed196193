package vram

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format"
)

// Measurement is what nvidia-smi reported of the devices while a run was going on.
type Measurement struct {
	Path    string
	Devices []Device // by index
	Samples int
	Notes   []string
}

// Device is the peak of one device.
type Device struct {
	Index string  // as the file has it; "" where the file has no column for it
	Peak  float64 // bytes
	Total float64 // bytes, 0 if the file does not say
	Line  int     // of the peak
}

// Limits of a file of samples.
const (
	maxLine    = 64 << 10
	maxDevices = 1024
)

// ReadCSV reads what nvidia-smi prints with --format=csv and --query-gpu=memory.used, and any other columns; -l 1 repeats
// it. Units are MiB (2²⁰ bytes), written or not. A file without a header line must have the one column memory.used. With
// --query-compute-apps the column is used_gpu_memory (used_memory in old versions).
//
// What is wrong with the content is a *format.Error. The last line may be cut off where the sampler was stopped: without its
// end and unreadable it is left out, and a note says so.
func ReadCSV(r io.Reader, path string) (*Measurement, error) {
	m := &Measurement{Path: path}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4096), maxLine)
	open := false // the last line has no end
	in.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n, token, err := bufio.ScanLines(data, atEOF)
		if n > 0 {
			open = data[n-1] != '\n'
		}
		return n, token, err
	})
	var cut error // why the line before this one could not be read
	var header []string
	used, total, index := 0, -1, -1
	unread := 0
	refuse := func(line int, msg string, args ...any) error {
		return format.Malformed(path, fmt.Sprintf("line %d", line), msg, args...)
	}
	line := 0
	for in.Scan() {
		if line++; cut != nil {
			return nil, cut
		}
		text := strings.TrimSpace(in.Text())
		if line == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		if strings.ContainsRune(text, 0) || line == 1 && (strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff")) {
			return nil, refuse(line, "is UTF-16 or binary; want UTF-8 text (in PowerShell: | Out-File -Encoding utf8)")
		}
		if text == "" {
			continue
		}
		fields := strings.Split(text, ",")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		if column := memoryColumn(fields); column >= 0 {
			if header != nil && !slices.Equal(header, fields) {
				return nil, refuse(line, "a second header with other columns")
			}
			header, used = fields, column
			total = slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, "memory.total") })
			index = slices.IndexFunc(fields, func(f string) bool {
				return f == "index" || f == "uuid" || f == "gpu_uuid" || f == "pci.bus_id" || f == "gpu_bus_id"
			})
			continue
		}
		switch {
		case header == nil && len(fields) > 1:
			return nil, refuse(line, "%d columns and no header: which is memory.used? Leave noheader out of --format", len(fields))
		case header != nil && len(fields) != len(header):
			cut = refuse(line, "%d columns, the header has %d", len(fields), len(header))
			continue
		}
		if f := strings.Trim(fields[used], "[]"); f == "N/A" || f == "Not Supported" || f == "Insufficient Permissions" || f == "Unknown Error" {
			unread++
			continue
		}
		peak, err := mebibytes(fields[used])
		if err != nil {
			cut = refuse(line, "memory.used is %.32q: %v", fields[used], err)
			continue
		}
		d := Device{Peak: peak, Line: line}
		if index >= 0 {
			d.Index = fmt.Sprintf("%.64s", fields[index])
		}
		if total >= 0 {
			if d.Total, err = mebibytes(fields[total]); err != nil {
				d.Total = 0
			}
			if d.Total > 0 && peak > d.Total {
				return nil, refuse(line, "memory.used %s is more than memory.total %s", fields[used], fields[total])
			}
		}
		m.Samples++
		at := slices.IndexFunc(m.Devices, func(x Device) bool { return x.Index == d.Index })
		switch {
		case at < 0 && len(m.Devices) == maxDevices:
			return nil, refuse(line, "more than %d devices", maxDevices)
		case at < 0:
			m.Devices = append(m.Devices, d)
		case d.Peak > m.Devices[at].Peak:
			m.Devices[at] = d
		}
	}
	switch err := in.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, refuse(line+1, "is longer than %d bytes", maxLine)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case cut != nil && (!open || m.Samples == 0):
		return nil, cut
	case m.Samples == 0 && unread > 0:
		return nil, format.Malformed(path, "", "the driver reported no memory.used in any of %d samples", unread)
	case m.Samples == 0:
		return nil, format.Malformed(path, "", "no sample; want the output of nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv -l 1")
	}
	if unread > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%d of %d samples have no number", unread, unread+m.Samples))
	}
	if cut != nil {
		m.Notes = append(m.Notes, fmt.Sprintf("line %d was cut off and is left out", line))
	}
	if m.Samples == 1 {
		m.Notes = append(m.Notes, "one sample is hardly the peak: sample with -l 1 during the whole run")
	}
	return m, nil
}

// memoryColumn returns the column of the used memory if fields are a header, else -1.
func memoryColumn(fields []string) int {
	for i, f := range fields {
		name, _, _ := strings.Cut(f, " ")
		if name == "memory.used" || name == "used_gpu_memory" || name == "used_memory" {
			return i
		}
	}
	return -1
}

// mebibytes reads "1234 MiB" or "1234" and returns bytes.
func mebibytes(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, " ")
	if unit != "" && unit != "MiB" {
		return 0, fmt.Errorf("unit %.16q, want MiB", unit)
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v > 1<<30 {
		return 0, errors.New("want a number of MiB")
	}
	return v * (1 << 20), nil
}
