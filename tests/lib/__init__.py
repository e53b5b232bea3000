"""What several kinds of tests share: servers under test, their faults, NFS clients, the VM, documents."""
