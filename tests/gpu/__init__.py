"""What only a GPU can show: ``make test-gpu`` runs it, and the local readers' tests on a GPU as well."""
