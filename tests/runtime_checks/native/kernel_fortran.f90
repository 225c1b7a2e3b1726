! A kernel's shared object in Fortran: what runs it, and its cases.
program kernel_fortran
  use torchferry
  implicit none
  type(tf_model) :: model
  character(1024) :: path
  integer :: status, compared, failed

  call get_command_argument(1, path)
  call model%load(trim(path), status, engine=TF_ENGINE_KERNEL, trust=TF_TRUST_NATIVE)
  if (status /= TF_OK) call complain(model%last_error())
  if (model%engine() /= "kernel") call complain("it is run by " // model%engine())
  if (tf_last_warning() /= "") call complain(tf_last_warning())
  call model%run_cases(compared, failed, status)
  if (status /= TF_OK .or. compared == 0 .or. failed > 0) call complain(model%last_error())
  call model%load(trim(path), status, engine=9)
  if (status /= TF_ERROR_ARGUMENT) call complain("an engine that there is not")
  print "(a)", "kernel: all passed"
contains
  subroutine complain(text)
    character(*), intent(in) :: text
    print "(a)", text
    error stop 1
  end subroutine
end program
