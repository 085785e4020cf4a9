package port

import (
	"testing"

	"github.com/coffer-project/coffer/storage/storagetest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
