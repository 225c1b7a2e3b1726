/* load_all FILE...: loads each, runs its cases, and prints the status of the first that fails. */
#include <stdio.h>
#include <torchferry/torchferry.h>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    tf_model model = NULL;
    tf_status status = tf_load(argv[i], "cpu", NULL, &model);
    if (status == TF_OK) status = tf_run_cases(model, NULL, NULL);
    printf("%s\n", tf_status_name(status));
    if (model) tf_close(model);
  }
  return 0;
}
