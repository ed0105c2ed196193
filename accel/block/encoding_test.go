package block

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/op"
)

// bytesOf are the instructions that stand as bytes in a source, each with the text in its comment turned into that of the GNU assembler.
func bytesOf(t *testing.T, file string) (code []byte, text []string) {
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, line := range strings.Split(string(source), "\n") {
		if !strings.Contains(line, "BYTE") {
			continue
		}
		head, comment, ok := strings.Cut(line, "//")
		require.True(t, ok, "%s: bytes without their instruction: %s", file, line)
		for _, b := range regexp.MustCompile(`BYTE \$0x([0-9a-f]{2})`).FindAllStringSubmatch(head, -1) {
			v, err := strconv.ParseUint(b[1], 16, 8)
			require.NoError(t, err)
			code = append(code, byte(v))
		}
		m := regexp.MustCompile(`^ ([A-Z0-9]+) Z(\d+), Z(\d+), Z(\d+)$`).FindStringSubmatch(comment)
		require.NotNil(t, m, "%s: %s", file, comment)
		// Go's assembler names operands in the order of AT&T.
		text = append(text, fmt.Sprintf("%s %%zmm%s, %%zmm%s, %%zmm%s", strings.ToLower(m[1]), m[2], m[3], m[4]))
	}
	return code, text
}

// The bytes are what the system's assembler makes of the instructions.
func TestEncodings(t *testing.T) {
	as, err := exec.LookPath("as")
	if err != nil {
		op.Skip(t, "as", "there is no assembler: "+err.Error())
	}
	assemble := func(text, object string) ([]byte, error) {
		cmd := exec.Command(as, "--64", "-o", object, "-")
		cmd.Stdin = strings.NewReader(text)
		return cmd.CombinedOutput()
	}
	if log, err := assemble("vdpbf16ps %zmm0, %zmm1, %zmm2\n", filepath.Join(t.TempDir(), "o")); err != nil {
		op.Skip(t, "as", "this assembler does not know AVX512-BF16: "+string(log))
	}
	n := 0
	for _, file := range []string{"bf16_amd64.s", filepath.Join("..", "cpu", "probe512_amd64.s")} {
		code, text := bytesOf(t, file)
		require.NotEmpty(t, text, file)
		n += len(text)
		object := filepath.Join(t.TempDir(), "o")
		log, err := assemble(strings.Join(text, "\n")+"\n", object)
		require.NoError(t, err, "%s", log)
		f, err := elf.Open(object)
		require.NoError(t, err)
		made, err := f.Section(".text").Data()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.True(t, bytes.Equal(code, made), "%s: the bytes are not those of the instructions in the comments", file)
	}
	t.Logf("%d instructions", n)
}
