! Heun's method for dy/dt = rate(y, k, t), with the rate from an archive: decay_fortran ARCHIVE
program decay
  use, intrinsic :: iso_fortran_env, only: error_unit, int32, real64
  use torchferry
  implicit none
  integer, parameter :: n = 4, steps = 200
  real(real64), parameter :: dt = 0.01_real64
  real(real64), target :: y(n), k(n), t(n), heat(n), guess(n), rate1(n), heat1(n), rate2(n), heat2(n)
  type(tf_model) :: model
  character(500) :: path
  integer(int32) :: status, compared, failed
  integer :: i, step

  call get_command_argument(1, path)
  call model%load(trim(path), status)
  if (status /= TF_OK) call give_up()
  call model%run_cases(compared, failed, status) ! the numbers of eager mode, here
  if (status /= TF_OK) call give_up()

  y = [1, 2, 3, 4]
  k = 0.5_real64*y
  heat = 0
  do step = 0, steps - 1
    t = step*dt
    call model%call([tf_view(y), tf_view(k), tf_view(t)], [tf_view(rate1), tf_view(heat1)], status)
    if (status /= TF_OK) call give_up()
    guess = y + dt*rate1
    t = t + dt
    call model%call([tf_view(guess), tf_view(k), tf_view(t)], [tf_view(rate2), tf_view(heat2)], status)
    if (status /= TF_OK) call give_up()
    heat = heat + 0.5_real64*dt*(heat1 + heat2)
    y = y + 0.5_real64*dt*(rate1 + rate2)
  end do
  print "(2es25.16)", (y(i), heat(i), i=1, n)
  call model%close(status)

contains

  subroutine give_up()
    write (error_unit, "(2a)") "decay_fortran: ", model%last_error()
    error stop 1
  end subroutine

end program
