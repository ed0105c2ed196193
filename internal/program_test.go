package internal_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var programs string // folder of what the tests build

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(programs)
	os.Exit(code)
}

// built is verify under the name that the wheel gives it.
var built = sync.OnceValues(func() (dir string, err error) {
	if programs, err = os.MkdirTemp("", "internal-test-"); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", filepath.Join(programs, "plumbline"), "plumbline/cmd/verify").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("building verify: %w\n%s", err, out)
	}
	return programs, err
})

// program returns the folder that holds the built program.
func program(t *testing.T) string {
	dir, err := built()
	require.NoError(t, err)
	return dir
}
